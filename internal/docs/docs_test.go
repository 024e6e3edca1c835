// Package docs holds the documentation to the code.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// root is the folder of the module.
var root = filepath.Join("..", "..")

// most is how many words the README may have. Its code blocks do not count.
const most = 1200

// pages returns the pages of the root and every page in docs, by their paths from root.
func pages(t *testing.T) []string {
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	all := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, path := range found {
		all = append(all, filepath.Join("docs", filepath.Base(path)))
	}
	return all
}

func read(t *testing.T, path string) string {
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// walk calls do with each Go file of the module, by its path from root.
func walk(t *testing.T, do func(path string)) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			rel, relErr := filepath.Rel(root, path)
			require.NoError(t, relErr)
			do(rel)
		}
		return err
	}))
}

// Each Go snippet stands in a test file word for word, but for how it is indented:
// there it is compiled, and runs in a test or in an example.
func TestGoSnippetsAreFromCodeThatRuns(t *testing.T) {
	var code []string
	walk(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			code = append(code, bare(read(t, path)))
		}
	})
	all := 0
	for _, page := range pages(t) {
		for _, snippet := range strings.Split(read(t, page), "```go\n")[1:] {
			all++
			snippet, _, _ = strings.Cut(snippet, "```")
			found := false
			for _, file := range code {
				found = found || strings.Contains(file, bare(snippet))
			}
			assert.True(t, found, "%s: no test has\n%s", page, snippet)
		}
	}
	assert.GreaterOrEqual(t, all, 15)
}

// bare is a text without what indents its lines.
func bare(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

func TestTheReadmeIsShort(t *testing.T) {
	words := len(strings.Fields(strings.Join(prose(read(t, "README.md")), "\n")))
	assert.LessOrEqual(t, words, most, "words of the README, without its code blocks")
}

// prose returns the lines of a page that are not in a code block.
func prose(text string) (lines []string) {
	code := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			code = !code
		case !code:
			lines = append(lines, line)
		}
	}
	return lines
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`^#{1,6} (.*\S)`)
)

// A link to a file leads to a file that exists, and one to a heading to one that
// its page has.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		text := strings.Join(prose(read(t, page)), "")
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target := found[1] + found[2]
			if scheme.MatchString(target) {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			path = filepath.Join(filepath.Dir(page), path)
			if strings.HasPrefix(target, "#") {
				path = page
			}
			_, err := os.Stat(filepath.Join(root, path))
			if !assert.NoError(t, err, "%s: %s", page, target) {
				continue
			}
			if anchor != "" {
				assert.Contains(t, anchors(read(t, path)), anchor, "%s: %s", page, target)
			}
		}
	}
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(text string) (names []string) {
	times := map[string]int{}
	for _, line := range prose(text) {
		found := heading.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		name := slug(found[1])
		if n := times[name]; n > 0 {
			names = append(names, name+"-"+string(rune('0'+n)))
		} else {
			names = append(names, name)
		}
		times[name]++
	}
	return names
}

var dropped = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)

func slug(heading string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestSlugs(t *testing.T) {
	assert.Equal(t, "the-sign-of-death-on-postgresql", slug("The sign of death on PostgreSQL"))
	assert.Equal(t, "lost-the-lock", slug("`lost the lock`"))
	assert.Equal(t, "search_path", slug("`search_path`"))
}

const longest = 25 // words of a sentence

// A sentence has at most 25 words. A colon and a semicolon end one too, and so do
// the ends of list items and cells.
func TestSentencesAreShort(t *testing.T) {
	for _, page := range pages(t) {
		for _, sentence := range sentences(read(t, page)) {
			if n := len(strings.Fields(sentence)); n > longest {
				t.Errorf("%s: %d words: %s", page, n, sentence)
			}
		}
	}
}

var (
	target   = regexp.MustCompile(`\]\([^)]*\)`)
	ends     = regexp.MustCompile(`[.!?:;]\s`)
	listItem = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
)

func sentences(text string) (all []string) {
	var parts []string
	last := ""
	flush := func(next string) { parts, last = append(parts, last), next }
	for _, line := range prose(text) {
		line = strings.TrimSpace(target.ReplaceAllString(line, "]"))
		switch {
		case strings.HasPrefix(line, "|"):
			flush("")
			parts = append(parts, strings.Split(line, "|")...)
		case strings.HasPrefix(line, "#"), line == "":
			flush("")
		case listItem.MatchString(line):
			flush(listItem.ReplaceAllString(line, ""))
		default:
			last += " " + line
		}
	}
	flush("")
	for _, part := range parts {
		all = append(all, ends.Split(part, -1)...)
	}
	return all
}
