// Package build says which version of this module a program was built with.
package build

import (
	"runtime/debug"
	"slices"
)

// next is the version that the code leads up to.
const next = "v0.1.0-dev"

const module = "example.com/schedlock"

// Version returns the version of this module that Go has recorded in the program: that
// of a release or of a commit. In an app it is the module's, not the app's. Go records none
// in a test, in a build without the repository, and where a folder replaces the module.
// Then it is the version that comes next.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return of(info)
	}
	return next
}

func of(info *debug.BuildInfo) string {
	m := &info.Main
	if m.Path != module {
		i := slices.IndexFunc(info.Deps, func(d *debug.Module) bool { return d.Path == module })
		if i < 0 {
			return next
		}
		m = info.Deps[i]
	}
	if m.Replace != nil {
		m = m.Replace
	}
	if m.Version == "" || m.Version == "(devel)" {
		return next
	}
	return m.Version
}
