package docs

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The link of an alert leads to its own heading, and the headings of "By alert"
// are the alerts, in their order. The server of the links is for the reader to set.
func TestEachAlertLinksToItsHeading(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "docs/alerts.yaml")), &file))
	text := read(t, runbook)
	known := anchors(text)
	var alerts []string
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			alerts = append(alerts, rule.Alert)
			link, err := url.Parse(rule.Annotations["runbook_url"])
			require.NoError(t, err, rule.Alert)
			assert.True(t, link.IsAbs() && strings.HasSuffix(link.Path, "/"+runbook),
				"%s: runbook_url %q does not lead to %s", rule.Alert, link, runbook)
			assert.Equal(t, slug(rule.Alert), link.Fragment, rule.Alert)
			assert.Contains(t, known, link.Fragment, rule.Alert)
		}
	}
	_, section, found := strings.Cut(text, "\n## By alert\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var headings []string
	for _, found := range regexp.MustCompile("(?m)^### `(.+)`$").FindAllStringSubmatch(section, -1) {
		headings = append(headings, found[1])
	}
	assert.Equal(t, alerts, headings, "the headings of \"By alert\" in %s", runbook)
}
