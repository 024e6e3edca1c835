package app

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// healthcheckTimeout bounds the whole request.
const healthcheckTimeout = 2 * time.Second

// healthcheck asks the app that serves on the configured address whether it
// does, and returns the exit code: 0 if so, else 1. It is what the image's
// HEALTHCHECK runs, as an image from scratch has no curl.
func healthcheck(args []string, stderr io.Writer) int {
	cfg, err := LoadConfig(args, os.LookupEnv, stderr)
	if err == nil {
		err = askHealth(cfg.addr)
	}
	if err != nil {
		say(stderr, "demoapp: healthcheck:", err)
		return exitFailed
	}
	return 0
}

// askHealth may get a listen address without a host, or with 0.0.0.0 or [::]:
// dialled, they mean this machine. For the same reason no proxy is asked, which
// the environment may name.
func askHealth(addr string) error {
	client := http.Client{Timeout: healthcheckTimeout, Transport: &http.Transport{}}
	res, err := client.Get("http://" + addr + "/healthz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /healthz on %s: %s", addr, res.Status)
	}
	return nil
}
