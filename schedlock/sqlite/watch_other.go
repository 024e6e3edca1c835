//go:build !linux

package sqlite

// A folderWatch has nothing to tell here: the files are looked at every second.
type folderWatch struct{ stirred chan struct{} }

func watchFolders(*databaseFiles) *folderWatch { return &folderWatch{} }

func (*folderWatch) renew() {}

func (*folderWatch) close() {}
