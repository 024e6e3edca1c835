package build

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheVersionIsThatOfTheModule(t *testing.T) {
	ours := func(version string) debug.Module {
		return debug.Module{Path: module, Version: version}
	}
	app := debug.Module{Path: "example.org/app", Version: "v7.7.7"}
	other := debug.Module{Path: module + "/more", Version: "v8.8.8"}
	in := func(m debug.Module) debug.BuildInfo {
		return debug.BuildInfo{Main: app, Deps: []*debug.Module{&other, &m}}
	}
	replaced := ours("v0.2.0")
	replaced.Replace = &debug.Module{Path: "../schedlock"}
	forked := ours("v0.2.0")
	forked.Replace = &debug.Module{Path: "example.org/fork", Version: "v0.2.1"}
	for what, tc := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"our own program, of a release": {debug.BuildInfo{Main: ours("v0.2.0")},
			"v0.2.0"},
		"of a commit": {
			debug.BuildInfo{Main: ours("v0.0.0-20260101000000-abcdefabcdef+dirty")},
			"v0.0.0-20260101000000-abcdefabcdef+dirty"},
		"without the repository":                  {debug.BuildInfo{Main: ours("(devel)")}, next},
		"a test":                                  {debug.BuildInfo{Main: ours("")}, next},
		"an app":                                  {in(ours("v0.2.0")), "v0.2.0"},
		"an app, with a folder in our place":      {in(replaced), next},
		"an app, with a fork in our place":        {in(forked), "v0.2.1"},
		"a program that Go says does not have us": {debug.BuildInfo{Main: app}, next},
	} {
		assert.Equal(t, tc.want, of(&tc.info), what)
	}
	assert.NotEmpty(t, Version())
}
