package startup_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"example.com/schedlock/startup"
)

func Example() {
	say := func(what string) func(context.Context) error {
		return func(context.Context) error {
			fmt.Println(what)
			return nil
		}
	}
	g, err := startup.New([]startup.Stage{
		{Name: "http", After: []string{"database"}, Start: say("listen"),
			Stop: say("close the listener")},
		{Name: "database", Start: say("open the database"), Stop: say("close the database")},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	budget, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := g.Stop(budget); err != nil {
		fmt.Println(err)
	}
	// Output:
	// open the database
	// listen
	// close the listener
	// close the database
}

func ExampleNew_faults() {
	_, err := startup.New([]startup.Stage{
		{Name: "a", After: []string{"b"}},
		{Name: "b", After: []string{"a"}},
		{Name: "http", After: []string{"databse"}},
	}, nil)
	fmt.Println(err)
	// Output:
	// stage "http": After names "databse", but no stage has that name
	// stages wait for each other: a → b → a; break the cycle in After
}
