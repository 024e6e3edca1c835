// Package e2e tests the demo app from outside: its replicas are real processes
// on real databases, which are signalled, stopped, killed and cut off. What it
// asserts is what docs/ promises to who runs an app with this module.
//
// The test binary is the app itself if a variable of the environment says so,
// see replica_test.go.
package e2e
