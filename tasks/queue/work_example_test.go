package queue_test

import (
	"context"
	"fmt"

	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

// Two workers on this replica, until ctx ends.
func ExampleQueues_Work() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := memory.New() // or sqlite.Open, or postgres.Open
	queues, err := queue.New(store.Queue())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = queues.Add(ctx, "mail", 3, "order-17")
	err = queues.Work(ctx, "mail", func(ctx context.Context, task *queue.Task) error {
		fmt.Println("mail for", task.ID)
		stop() // as SIGTERM would, by signal.NotifyContext
		return nil
	}, queue.WorkOptions{Workers: 2})
	fmt.Println(err)
	// Output:
	// mail for order-17
	// <nil>
}
