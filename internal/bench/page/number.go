package page

import (
	"math"
	"strconv"
	"time"
)

// Number writes a number with three significant digits, and never with an exponent.
func Number(f float64) string {
	// What has just been written can be read.
	short, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 3, 64), 64)
	return strconv.FormatFloat(short, 'f', -1, 64)
}

// Time writes a duration with the unit that fits.
func Time(d time.Duration) string { return Nanoseconds(float64(d)) }

// Nanoseconds does so with a mean, which may be a part of one.
func Nanoseconds(n float64) string {
	switch a := math.Abs(n); {
	case a == 0:
		return "0"
	case a < 1e3:
		return Number(n) + " ns"
	case a < 1e6:
		return Number(n/1e3) + " µs"
	case a < 1e9:
		return Number(n/1e6) + " ms"
	}
	return Number(n/1e9) + " s"
}

// Bytes writes a size with the unit that fits.
func Bytes(n float64) string {
	units := []string{" B", " KiB", " MiB", " GiB"}
	for len(units) > 1 && math.Abs(n) >= 1024 {
		n /= 1024
		units = units[1:]
	}
	return Number(n) + units[0]
}

// Thousands writes 1000000 as 1,000,000.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
