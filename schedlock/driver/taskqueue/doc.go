// Package taskqueue is what a database must provide for queues of tasks; package
// tasks/queue has what an app calls.
package taskqueue
