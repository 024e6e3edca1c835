//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"example.com/schedlock/cmd/demoapp/app"
)

// The types have the fields that docs/kubernetes.yaml uses, and no others:
// reading it is strict, so that a field that Kubernetes does not know, or knows
// elsewhere, cannot come in by a slip.
type (
	labels   map[string]string
	metadata struct {
		Name                string
		Labels, Annotations labels
	}
	selector struct {
		MatchLabels labels `yaml:"matchLabels"`
	}
	resource[S any] struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       S
	}
)

type deploymentSpec struct {
	Replicas int
	Selector selector
	Strategy struct {
		Type          string
		RollingUpdate struct {
			MaxUnavailable *int `yaml:"maxUnavailable"`
			MaxSurge       int  `yaml:"maxSurge"`
		} `yaml:"rollingUpdate"`
	}
	Template struct {
		Metadata metadata
		Spec     podSpec
	}
}

type podSpec struct {
	Grace  int `yaml:"terminationGracePeriodSeconds"`
	Spread []struct {
		MaxSkew           int      `yaml:"maxSkew"`
		TopologyKey       string   `yaml:"topologyKey"`
		WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
		LabelSelector     selector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	AutomountToken     *bool `yaml:"automountServiceAccountToken"`
	EnableServiceLinks *bool `yaml:"enableServiceLinks"`
	SecurityContext    struct {
		RunAsNonRoot   bool `yaml:"runAsNonRoot"`
		RunAsUser      int  `yaml:"runAsUser"`
		RunAsGroup     int  `yaml:"runAsGroup"`
		SeccompProfile struct {
			Type string
		} `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []podContainer
}

type podContainer struct {
	Name, Image string
	Command     []string
	Args        []string
	Ports       []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Env []struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Startup   probe `yaml:"startupProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Resources struct {
		Requests, Limits map[string]string
	}
	SecurityContext struct {
		Escalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnly   bool  `yaml:"readOnlyRootFilesystem"`

		Capabilities struct{ Drop []string }
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct {
		Path, Port string
	} `yaml:"httpGet"`
	PeriodSeconds    int `yaml:"periodSeconds"`
	TimeoutSeconds   int `yaml:"timeoutSeconds"`
	FailureThreshold int `yaml:"failureThreshold"`
}

type serviceSpec struct {
	Selector labels
	Ports    []struct {
		Name       string
		Port       int
		TargetPort string `yaml:"targetPort"`
	}
}

type budgetSpec struct {
	MaxUnavailable   int    `yaml:"maxUnavailable"`
	UnhealthyEvicted string `yaml:"unhealthyPodEvictionPolicy"`
	Selector         selector
}

// decodeStrictly fails on a field that T does not have.
func decodeStrictly[T any](t *testing.T, doc []byte) (v T) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(doc))
	d.KnownFields(true)
	require.NoError(t, d.Decode(&v))
	return v
}

func readManifest(t *testing.T) (d resource[deploymentSpec], s resource[serviceSpec],
	b resource[budgetSpec]) {
	t.Helper()
	file, err := os.ReadFile("../../docs/kubernetes.yaml")
	require.NoError(t, err)
	docs := bytes.Split(file, []byte("\n---\n"))
	require.Len(t, docs, 3)
	d = decodeStrictly[resource[deploymentSpec]](t, docs[0])
	s = decodeStrictly[resource[serviceSpec]](t, docs[1])
	b = decodeStrictly[resource[budgetSpec]](t, docs[2])
	require.Equal(t, []string{"apps/v1", "Deployment"}, []string{d.APIVersion, d.Kind})
	require.Equal(t, []string{"v1", "Service"}, []string{s.APIVersion, s.Kind})
	require.Equal(t, []string{"policy/v1", "PodDisruptionBudget"}, []string{b.APIVersion, b.Kind})
	return d, s, b
}

// stopBudget is how long a shutdown may take in an environment, all of whose
// variables must be the app's own, and valid.
func stopBudget(t *testing.T, env map[string]string) time.Duration {
	t.Helper()
	var usage bytes.Buffer
	_, err := app.LoadConfig([]string{"-h"}, func(string) (string, bool) { return "", false }, &usage)
	require.Error(t, err)
	for name := range env {
		require.Contains(t, usage.String(), "["+name+"]", "a variable that the app does not know")
	}
	cfg, err := app.LoadConfig(nil, func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}, io.Discard)
	require.NoError(t, err)
	app, err := app.New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return app.StopBudget()
}

func TestKubernetesManifestSelectsAndHardensItsPods(t *testing.T) {
	t.Parallel()
	deployment, service, budget := readManifest(t)
	d, pod := deployment.Spec, deployment.Spec.Template.Spec

	own := d.Template.Metadata.Labels
	require.NotEmpty(t, own)
	require.Equal(t, own, d.Selector.MatchLabels)
	require.Equal(t, own, service.Spec.Selector)
	require.Equal(t, own, budget.Spec.Selector.MatchLabels)
	require.Len(t, pod.Spread, 1)
	require.Equal(t, own, pod.Spread[0].LabelSelector.MatchLabels)
	require.Equal(t, "kubernetes.io/hostname", pod.Spread[0].TopologyKey)
	require.Equal(t, "ScheduleAnyway", pod.Spread[0].WhenUnsatisfiable)
	require.Equal(t, 1, pod.Spread[0].MaxSkew)

	require.Equal(t, "RollingUpdate", d.Strategy.Type)
	require.NotNil(t, d.Strategy.RollingUpdate.MaxUnavailable, "the default is a quarter")
	require.Zero(t, *d.Strategy.RollingUpdate.MaxUnavailable)
	require.Equal(t, 1, d.Strategy.RollingUpdate.MaxSurge)
	require.Greater(t, d.Replicas, budget.Spec.MaxUnavailable,
		"somebody leads while a node is emptied")
	require.Equal(t, 1, budget.Spec.MaxUnavailable)
	require.Equal(t, "AlwaysAllow", budget.Spec.UnhealthyEvicted)

	// Who runs is who the image says.
	dockerfile, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	user := regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`).FindSubmatch(dockerfile)
	require.NotNil(t, user)
	require.Equal(t, string(user[1]), strconv.Itoa(pod.SecurityContext.RunAsUser))
	require.Equal(t, string(user[2]), strconv.Itoa(pod.SecurityContext.RunAsGroup))
	require.True(t, pod.SecurityContext.RunAsNonRoot)
	require.Equal(t, "RuntimeDefault", pod.SecurityContext.SeccompProfile.Type)
	for _, off := range []*bool{pod.AutomountToken, pod.EnableServiceLinks,
		pod.Containers[0].SecurityContext.Escalation} {
		require.NotNil(t, off)
		require.False(t, *off)
	}
	require.True(t, pod.Containers[0].SecurityContext.ReadOnly)
	require.Equal(t, []string{"ALL"}, pod.Containers[0].SecurityContext.Capabilities.Drop)
	require.NotContains(t, pod.Containers[0].Resources.Limits, "cpu")
	require.Contains(t, pod.Containers[0].Resources.Limits, "memory")
}

func TestKubernetesManifestFitsTheApp(t *testing.T) {
	t.Parallel()
	deployment, service, _ := readManifest(t)
	pod := deployment.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]

	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.Name == "DEMOAPP_DATABASE_URL" {
			require.Empty(t, e.Value, "it holds a password: it comes from a secret")
			require.NotEmpty(t, e.ValueFrom.SecretKeyRef.Name)
			require.NotEmpty(t, e.ValueFrom.SecretKeyRef.Key)
			env[e.Name] = "postgres://demoapp:secret@db:5432/demoapp" // as the file's head has it
		}
	}
	require.Contains(t, env, "DEMOAPP_DATABASE_URL")
	require.Greater(t, time.Duration(pod.Grace)*time.Second, stopBudget(t, env))
	text, err := os.ReadFile("../../docs/deploying.md")
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf("That is %.0f s for the demo app",
		stopBudget(t, nil).Seconds()))
	require.NotContains(t, env, "DEMOAPP_MODE",
		"with strict mode a new pod would never be ready beside the old one")

	require.Len(t, c.Ports, 1)
	require.Equal(t, "0.0.0.0:"+strconv.Itoa(c.Ports[0].ContainerPort), env["DEMOAPP_ADDR"])
	require.Len(t, service.Spec.Ports, 1)
	require.Equal(t, c.Ports[0].Name, service.Spec.Ports[0].TargetPort)
	scrape := deployment.Spec.Template.Metadata.Annotations
	require.Equal(t, "true", scrape["prometheus.io/scrape"])
	require.Equal(t, strconv.Itoa(c.Ports[0].ContainerPort), scrape["prometheus.io/port"])

	f := newFleet(t)
	leader, _ := f.startLeader()
	standby := f.start()
	for _, r := range []*replica{leader, standby} {
		require.Equal(t, http.StatusOK, r.get(scrape["prometheus.io/path"]).status)
		for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
			require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port)
			require.Equal(t, http.StatusOK, r.get(p.HTTPGet.Path).status)
			require.Greater(t, time.Duration(p.TimeoutSeconds)*time.Second, readyTimeout)
		}
	}
	require.Equal(t, "/readyz", c.Readiness.HTTPGet.Path)
	require.Equal(t, "/livez", c.Liveness.HTTPGet.Path)
	require.Equal(t, "/livez", c.Startup.HTTPGet.Path)
	require.Greater(t,
		time.Duration(c.Startup.PeriodSeconds*c.Startup.FailureThreshold)*time.Second, time.Minute,
		"the two stages before HTTP: the lock's database, and the bans")
}

func TestTheManifestOfTheSidecarIsOne(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../docs/kubernetes-sidecar.yaml")
	require.NoError(t, err)
	pod := decodeStrictly[resource[deploymentSpec]](t, file).Spec.Template.Spec
	require.Len(t, pod.Containers, 2)
	lead := pod.Containers[1]
	require.Equal(t, []string{"/schedlock"}, lead.Command)
	require.Contains(t, lead.Args, "127.0.0.1:7070")
	require.Equal(t, "SCHEDLOCK_DATABASE_URL", lead.Env[0].Name)
	i := slices.Index(lead.Args, "--valid-for")
	valid, err := time.ParseDuration(lead.Args[i+1])
	require.NoError(t, err)
	require.Greater(t, time.Duration(pod.Grace)*time.Second, valid+10*time.Second)
}
