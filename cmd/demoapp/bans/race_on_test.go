//go:build race

package bans

const raceEnabled = true
