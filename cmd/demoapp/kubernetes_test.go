//go:build unix

package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type probe struct {
	HTTPGet struct {
		Path, Port string
	} `yaml:"httpGet"`
	TimeoutSeconds int `yaml:"timeoutSeconds"`
}

// manifest is what the tests look at in docs/kubernetes.yaml.
type manifest struct {
	Kind string
	Spec struct {
		Strategy struct {
			RollingUpdate struct {
				MaxUnavailable *int `yaml:"maxUnavailable"`
				MaxSurge       int  `yaml:"maxSurge"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Spec struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					Env []struct {
						Name, Value string
					}
					Readiness probe `yaml:"readinessProbe"`
					Liveness  probe `yaml:"livenessProbe"`
				}
			}
		}
		Ports []struct {
			TargetPort string `yaml:"targetPort"`
		}
	}
}

func TestKubernetesManifestFitsTheApp(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../docs/kubernetes.yaml")
	require.NoError(t, err)
	byKind := map[string]manifest{}
	for docs := yaml.NewDecoder(bytes.NewReader(file)); ; {
		var m manifest
		if err := docs.Decode(&m); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		byKind[m.Kind] = m
	}
	require.Len(t, byKind, 2)
	deployment := byKind["Deployment"].Spec
	require.NotNil(t, deployment.Strategy.RollingUpdate.MaxUnavailable)
	require.Zero(t, *deployment.Strategy.RollingUpdate.MaxUnavailable)
	require.Equal(t, 1, deployment.Strategy.RollingUpdate.MaxSurge)
	pod := deployment.Template.Spec
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.Equal(t, "http", c.Ports[0].Name)
	require.Equal(t, c.Ports[0].Name, byKind["Service"].Spec.Ports[0].TargetPort)

	// The environment is one that the app takes, whatever the secret is.
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	require.Contains(t, env, "DEMOAPP_DATABASE_URL")
	require.Empty(t, env["DEMOAPP_DATABASE_URL"], "it holds a password: it comes from a secret")
	cfg, err := loadConfig(nil, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:8080", cfg.addr)
	require.Equal(t, 8080, c.Ports[0].ContainerPort)
	app, err := newApp(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Greater(t, time.Duration(pod.Grace)*time.Second, app.StopBudget())

	f := newFleet(t)
	f.startLeader()
	standby := f.start()
	for path, p := range map[string]probe{"/readyz": c.Readiness, "/healthz": c.Liveness} {
		require.Equal(t, path, p.HTTPGet.Path)
		require.Equal(t, "http", p.HTTPGet.Port)
		require.Equal(t, http.StatusOK, standby.get(path).status)
		require.Greater(t, time.Duration(p.TimeoutSeconds)*time.Second, readyTimeout)
	}
}
