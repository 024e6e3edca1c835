package rules

import "time"

// RoundAge makes an age readable: milliseconds below a minute, else seconds.
func RoundAge(d time.Duration) time.Duration {
	if d.Abs() < time.Minute {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
