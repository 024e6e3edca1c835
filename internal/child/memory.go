package child

import "os"

// Disk is the folder for temporary files on a disk.
var Disk = os.TempDir()

// InMemory lets the temporary folders of this test binary, and of the processes that
// it starts, be in memory, where there is room: on a busy disk a flush may take longer
// than a replica has time to start. Whoever sets TMPDIR gets them there.
func InMemory() {
	if dir := memory(); dir != "" && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", dir)
	}
}
