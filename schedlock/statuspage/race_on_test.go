//go:build race

package statuspage

const raceEnabled = true
