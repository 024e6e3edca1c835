//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A noiseSample says how busy the machine was before a part was measured.
type noiseSample struct {
	Before string // which part
	CPU    sample // a fixed piece of work
	Flush  sample // write 4 KiB and fdatasync, on the file system of the databases
	Load   string // the load average over one minute
	// part of the cores that was busy, or taken by the host,
	// for a second in which this program did nothing
	Others float64
	Stolen float64 // part of the cores that the host took away since the sample before
}

// calm is how much of the cores others may use for a machine to be called calm.
const calm = 0.1

// noise takes a sample.
func (m *measurer) noise(ctx context.Context, before string) {
	s := noiseSample{Before: before}
	idle := time.Second
	if m.quick {
		idle /= 10
	}
	was := readProcessors()
	if rest(ctx, idle) != nil {
		return
	}
	busy := readProcessors()
	s.Others = 1 - busy.part(was, func(p processors) int64 { return p.idle })
	work := make([]byte, 1<<20)
	var cpu, flush []time.Duration
	for range m.rounds(200) {
		begin := time.Now()
		sum := sha256.Sum256(work)
		cpu = append(cpu, time.Since(begin))
		work[0] = sum[0]
	}
	if file, err := os.Create(filepath.Join(m.dir, "flushed")); err == nil {
		for range m.rounds(100) {
			begin := time.Now()
			if _, err = file.WriteAt(work[:4096], 0); err == nil {
				err = unix.Fdatasync(int(file.Fd()))
			}
			if err != nil {
				break // the databases will say more about it
			}
			flush = append(flush, time.Since(begin))
		}
		file.Close()
	}
	s.CPU, s.Flush = newSample(cpu), newSample(flush)
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		s.Load, _, _ = strings.Cut(string(text), " ")
	}
	now := readProcessors()
	s.Stolen = now.part(m.report.processors, func(p processors) int64 { return p.stolen })
	m.report.processors = now
	m.report.Noise = append(m.report.Noise, s)
}

// processors is what all processors of the machine have done, in ticks.
type processors struct{ idle, stolen, total int64 }

// part is what part of the time since then some of it took.
func (p processors) part(then processors, of func(processors) int64) float64 {
	if then.total == 0 || p.total == then.total {
		return 0
	}
	return float64(of(p)-of(then)) / float64(p.total-then.total)
}

func readProcessors() (p processors) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return p
	}
	var user, nice, system, idle, wait, irq, soft, steal int64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system,
		&idle, &wait, &irq, &soft, &steal); err != nil {
		return p
	}
	return processors{idle: idle + wait, stolen: steal,
		total: user + nice + system + idle + wait + irq + soft + steal}
}
