//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.etcd.io/etcd/server/v3/embed"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/pgtest"
)

// servers are what the contestants need. Each process ends when its standard
// input does, so none outlives this program.
type servers struct {
	env       environment
	host      host.Host // of PostgreSQL
	processes []*host.Child
}

func startServers(ctx context.Context) (*servers, error) {
	s := &servers{}
	err := s.start(ctx)
	if err != nil {
		err = errors.Join(err, s.stop())
	}
	return s, err
}

func (s *servers) start(ctx context.Context) (err error) {
	if s.env.Script, err = filepath.Abs("baseline.py"); err != nil {
		return err
	}
	if _, err := os.Stat(s.env.Script); err != nil {
		return fmt.Errorf("run it in its own folder: %w", err)
	}
	if s.env.Dir, err = os.MkdirTemp("", "schedlock-peers"); err != nil {
		return err
	}
	if err := s.host.Try(func() {
		server := pgtest.Start(&s.host, "fsync = on", "synchronous_commit = on",
			"max_connections = 600")
		s.env.Postgres = server.Database(&host.Host{}) // it goes with the server
	}); err != nil {
		return err
	}
	redis, client, peer, api := freePort(), freePort(), freePort(), freePort()
	s.env.Redis, s.env.Etcd, s.env.API = address(redis), address(client), address(api)
	for _, args := range [][]string{
		{"guard", "redis-server", "--port", redis, "--bind", "127.0.0.1", "--dir", s.env.Dir},
		{"etcd", filepath.Join(s.env.Dir, "etcd"), client, peer},
		{"kubernetes", s.env.Etcd, api},
	} {
		process, err := host.StartChild(self(args...))
		if err != nil {
			return err
		}
		s.processes = append(s.processes, process)
	}
	return s.answer(ctx)
}

// answer waits until each server does.
func (s *servers) answer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		client, err := redisClient(ctx, s.env)
		_ = client.Close() // it was only to be reached
		if err == nil {
			var ready *http.Response
			if ready, err = http.Get("http://" + s.env.API + "/readyz"); err == nil {
				_ = ready.Body.Close() // nothing is read
				if ready.StatusCode == http.StatusOK {
					return nil
				}
				err = errors.New(ready.Status)
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("a server does not answer: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *servers) stop() error {
	for _, process := range slices.Backward(s.processes) {
		_ = process.In.Close() // that ends it
		process.Join()
	}
	s.host.End()
	if s.env.Dir == "" {
		return nil
	}
	return os.RemoveAll(s.env.Dir)
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func address(port string) string { return net.JoinHostPort("127.0.0.1", port) }

// untilParentEnds returns when the standard input ends.
func untilParentEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

// guard runs another program until the parent ends.
func guard(args []string) {
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	untilParentEnds()
	_ = cmd.Process.Kill() // its data are thrown away
	_ = cmd.Wait()
}

// serveEtcd runs one member with the defaults of embed.
func serveEtcd(args []string) {
	signal.Ignore(os.Interrupt)
	config := embed.NewConfig()
	config.Dir, config.LogLevel = args[0], "fatal"
	client := []url.URL{{Scheme: "http", Host: address(args[1])}}
	peer := []url.URL{{Scheme: "http", Host: address(args[2])}}
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	untilParentEnds()
	server.Close()
}

// versions are those of the servers and of the peers' modules.
func versions(ctx context.Context, env environment) (all [][]string) {
	if conn, err := pgx.Connect(ctx, env.Postgres); err == nil {
		var v string
		if conn.QueryRow(ctx, "SHOW server_version").Scan(&v) == nil {
			all = append(all, []string{"PostgreSQL", v + ", with fsync"})
		}
		_ = conn.Close(ctx) // nothing is written
	}
	if client, err := redisClient(ctx, env); err == nil {
		text, _ := client.Info(ctx, "server").Result() // without it, there is no row
		lines := bufio.NewScanner(strings.NewReader(text))
		for lines.Scan() {
			if v, ok := strings.CutPrefix(lines.Text(), "redis_version:"); ok {
				all = append(all, []string{"Redis", v})
			}
		}
		_ = client.Close() // nothing is written
	}
	build, _ := debug.ReadBuildInfo()
	for _, d := range build.Deps {
		for _, peer := range []string{"cirello.io/pglock", "go.etcd.io/etcd/server/v3",
			"k8s.io/client-go", "github.com/riverqueue/river", "github.com/bsm/redislock",
			"github.com/go-redsync/redsync/v4", "github.com/go-co-op/gocron-redis-lock/v2",
			"github.com/go-co-op/gocron-gorm-lock/v2"} {
			if d.Path == peer {
				all = append(all, []string{"`" + d.Path + "`", d.Version})
			}
		}
	}
	return all
}
