//go:build !unix

package doctor

import "os"

const checksAccess = false

func mayRead(string) error             { return nil }
func mayWrite(string) error            { return nil }
func mayWriteFolder(string) error      { return nil }
func root() bool                       { return false }
func thisUser() string                 { return "this user" }
func describe(info os.FileInfo) string { return info.Mode().String() }
func owns(os.FileInfo) bool            { return false }
func sameOwner(_, _ os.FileInfo) bool  { return true }
func writableByAll(os.FileInfo) bool   { return false }
func links(os.FileInfo) uint64         { return 1 }
