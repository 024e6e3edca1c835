package sqlite

import "time"

// wallClock stands in for the id of a boot where the wall clock decides. It
// goes on over a restart, so what it has stored stays valid.
const wallClock = "wall clock"

// wallNow is bootNow where there is no better clock.
func wallNow() (ms int64, bootID string) { return time.Now().UnixMilli(), wallClock }
