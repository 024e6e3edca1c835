package postgres

import "fmt"

// SQLCaptureTasks is what Capture sends.
func SQLCaptureTasks(limit int) string { return fmt.Sprintf(sqlCaptureTasks, limit) }
