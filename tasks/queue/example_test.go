package queue_test

import (
	"context"
	"errors"
	"fmt"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/tasks/queue"
)

// A worker takes tasks until there is none, and gives one back that has failed.
func Example() {
	ctx := context.Background()
	store := memory.New() // or sqlite.Open, or postgres.Open
	queues, err := queue.New(store.Queue())
	if err != nil {
		fmt.Println(err)
		return
	}
	// What an order is stands in the app's own table. A request that is sent
	// twice adds its task once.
	for range 2 {
		added, err := queues.Add(ctx, "mail", 1, "order-17", "order-18")
		fmt.Println(added, err)
	}

	for {
		tasks, err := queues.Capture(ctx, "mail", 10)
		if errors.Is(err, queue.ErrNone) {
			fmt.Println(errors.Is(err, queue.ErrEmpty))
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, task := range tasks {
			work, cancel := context.WithTimeout(ctx, task.Left())
			err := send(work, task)
			cancel()
			if err != nil {
				err = queues.Fail(ctx, task, err, 0) // or after a delay
			} else {
				err = queues.Done(ctx, task)
			}
			if errors.Is(err, schedlock.ErrLost) {
				fmt.Println("another worker has it") // it took longer than the time-out
			}
		}
	}
	// Output:
	// [order-17 order-18] <nil>
	// [] <nil>
	// attempt 1 of order-17
	// attempt 1 of order-18
	// attempt 2 of order-17
	// true
}

func send(_ context.Context, task *queue.Task) error {
	fmt.Printf("attempt %d of %s\n", task.Attempts, task.ID)
	if task.ID == "order-17" && task.Attempts == 1 {
		return errors.New("the mail server is busy")
	}
	return nil
}
