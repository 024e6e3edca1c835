package prom_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const dashboard = "../../docs/grafana.json"

// A grafana is what these tests look at of a dashboard.
type grafana struct {
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Templating  struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (g grafana) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(read(t, dashboard)), &g))
	return g
}

// expressions are all the queries of a dashboard, each with its legend.
func (g grafana) expressions() (all [][2]string) {
	for _, p := range g.Panels {
		for _, target := range p.Targets {
			all = append(all, [2]string{target.Expr, target.LegendFormat})
		}
	}
	for _, a := range g.Annotations.List {
		all = append(all, [2]string{a.Expr, ""})
	}
	return all
}

// series are the label values that a leader exports, by series and label. Those
// of a histogram have its suffixes.
func series(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{}
	for name, family := range exported(t) {
		names := []string{name}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{name + "_bucket", name + "_sum", name + "_count"}
		}
		for _, name := range names {
			labels := map[string][]string{"job": nil, "instance": nil}
			if strings.HasSuffix(name, "_bucket") {
				labels["le"] = nil
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
				}
			}
			all[name] = labels
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b(schedlock_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
	legend   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	variable = regexp.MustCompile(`\$(\w+)`)
)

func TestTheDashboardAsksForWhatIsExported(t *testing.T) {
	exported := series(t)
	g := readDashboard(t)
	used := map[string]bool{}
	check := func(expr, legends string) {
		known := map[string]bool{}
		selectors := selector.FindAllStringSubmatch(expr, -1)
		require.NotEmpty(t, selectors, expr)
		for _, s := range selectors {
			labels, ok := exported[s[1]]
			require.True(t, ok, "%s is no series: %s", s[1], expr)
			used[s[1]] = true
			for name := range labels {
				known[name] = true
			}
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				values, ok := labels[m[1]]
				require.True(t, ok, "%s has no label %s: %s", s[1], m[1], expr)
				if !strings.Contains(m[3], "$") {
					require.Contains(t, values, m[3], "%s of %s: %s", m[1], s[1], expr)
				}
			}
		}
		for _, group := range grouping.FindAllStringSubmatch(expr, -1) {
			for name := range strings.SplitSeq(group[1], ",") {
				require.True(t, known[strings.TrimSpace(name)], "no label %s: %s", name, expr)
			}
		}
		for _, l := range legend.FindAllStringSubmatch(legends, -1) {
			require.True(t, known[l[1]], "no label %s for %q: %s", l[1], legends, expr)
			if strings.Contains(expr, " by (") {
				require.Regexp(t, `by \([^)]*\b`+l[1]+`\b`, expr, "it is grouped away")
			}
		}
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range g.Templating.List {
		variables[v.Name] = true
		if v.Type != "query" {
			continue
		}
		found := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).
			FindStringSubmatch(v.Definition)
		require.NotNil(t, found, v.Definition)
		check("group by ("+found[2]+") ("+found[1]+")", "")
	}
	for _, e := range g.expressions() {
		check(e[0], e[1])
		for _, v := range variable.FindAllStringSubmatch(e[0], -1) {
			require.True(t, variables[v[1]], "nobody sets $%s: %s", v[1], e[0])
		}
	}
	require.Greater(t, len(used), 20)
}

func TestTheDashboardIsWellFormed(t *testing.T) {
	t.Parallel()
	g := readDashboard(t)
	require.Greater(t, len(g.Panels), 10)
	ids := map[int]string{}
	cells := map[[2]int]string{}
	for _, p := range g.Panels {
		require.Positive(t, p.ID, p.Title)
		require.Empty(t, ids[p.ID], "panel %q has the id of another one", p.Title)
		ids[p.ID] = p.Title
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, cells[[2]int{x, y}], "%q lies on another panel", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

// Prometheus itself reads each query, as a rule of a file of rules.
func TestTheDashboardsQueriesWithPromtool(t *testing.T) {
	t.Parallel()
	var rules []map[string]string
	for i, e := range readDashboard(t).expressions() {
		rules = append(rules, map[string]string{"record": "query",
			"expr": strings.ReplaceAll(e[0], "$__rate_interval", "1m")})
		rules[i]["record"] += strings.Repeat("_", i) // a name may not be there twice
	}
	require.NotEmpty(t, rules)
	text, err := yaml.Marshal(map[string]any{
		"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	promtool(t, "check", "rules", path)
}
