package prom_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"example.com/schedlock/internal/missing"
)

const (
	alerts      = "../../docs/alerts.yaml"
	alertsTests = "../../docs/alerts_test.yaml"
	alertsOfDay = "../../docs/alerts_day_test.yaml"
)

// exported are all the metrics, of a leader that has run a job.
func exported(t *testing.T) (all map[string]*dto.MetricFamily) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *world) {
		a := w.join(every("import", time.Minute, nothing))
		_, err := w.db.Queue().Add(ctx, "mail", 0, []string{"1"})
		require.NoError(t, err)
		sleep(2 * time.Minute)
		all = a.scrape().families
	})
	require.Greater(t, len(all), 20)
	return all
}

// mentioned are the metrics that a text names, without the suffixes of the
// series of a histogram.
func mentioned(text string) []string {
	var names []string
	for _, name := range regexp.MustCompile(`\bschedlock_[a-z_]+`).FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestThePackageCommentHasEveryMetric(t *testing.T) {
	text := read(t, "doc.go")
	require.Equal(t, slices.Sorted(maps.Keys(exported(t))), mentioned(text))
}

func TestAlertsNameOnlyMetricsThatAreExported(t *testing.T) {
	names := slices.Collect(maps.Keys(exported(t)))
	for _, path := range []string{alerts, alertsTests, alertsOfDay} {
		used := mentioned(read(t, path))
		require.Greater(t, len(used), 1, path)
		require.Subset(t, names, used, path)
	}
}

// Each alert has what an operator needs, and a case in which it fires.
func TestEachAlertIsCompleteAndTried(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, alerts)), &file))
	tried := read(t, alertsTests) + read(t, alertsOfDay)
	n := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			require.NotEmpty(t, r.Alert)
			require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["description"], r.Alert)
			require.Contains(t, tried, `{alertname="`+r.Alert+`", alertstate="firing"`)
		}
	}
	require.Greater(t, n, 5)
}

func TestAlertsWithPromtool(t *testing.T) {
	missing.Long(t, "runs promtool")
	t.Parallel()
	promtool(t, "check", "rules", alerts)
	promtool(t, "test", "rules", alertsTests, alertsOfDay)
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if errors.Is(err, exec.ErrNotFound) {
		missing.Skip(t, "the program promtool (it comes with Prometheus)")
	}
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
