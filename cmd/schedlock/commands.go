package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/schedlock/internal/flags"
	"example.com/schedlock/internal/message"
)

// An action does what a command is for, and returns the exit code, or an error.
type action = func(context.Context) (int, error)

// A command declares its flags, and returns what to do once they are parsed.
type command struct {
	use     string // its name and its arguments, as help shows them
	args    int    // how many it takes at most; anyProgram: a program and its own arguments
	summary string
	help    string // with examples at its end
	setUp   func(*tool, *pflag.FlagSet) action

	withoutDatabase bool
	parts           []command
}

func (c command) name() string { return strings.Fields(c.use)[0] }

const anyProgram = -1

var commands []command

func init() { // the command man refers to the table
	cobra.EnableCommandSorting = false // the table's order is one for readers
	commands = []command{
		{use: "status", setUp: status, help: statusHelp,
			summary: "who leads, since when, and whether it lives"},
		{use: "watch", setUp: watch, help: watchHelp,
			summary: "one line for every change, until Ctrl-C"},
		{use: "history", setUp: history, help: historyHelp,
			summary: "the latest terms, and how they ended"},
		{use: "runs", setUp: runs, help: runsHelp, summary: "the latest runs"},
		{use: "jobs", setUp: jobs, help: jobsHelp,
			summary: "the jobs: next tick, last success, failures, pauses"},
		{use: "audit [JOB]", args: 1, setUp: audit, help: auditHelp,
			summary: "who has ordered what, and why"},
		{use: "replicas", setUp: replicas, help: replicasHelp,
			summary: "the replicas that tell of themselves"},
		{use: "release", setUp: release, help: releaseHelp,
			summary: "tell the leader to leave, so that another replica leads"},
		{use: "pause JOB|--all", args: 1, setUp: pause, help: pauseHelp,
			summary: "keep a job, or every job, from starting"},
		{use: "resume JOB|--all", args: 1, setUp: resume, help: resumeHelp,
			summary: "end the pause of a job, or of the whole scheduler"},
		{use: "run JOB", args: 1, setUp: runJob, help: runHelp,
			summary: "ask the leader to run a job now"},
		{use: "reset-cursor JOB", args: 1, setUp: resetCursor, help: resetHelp,
			summary: "let a job whose cursor is wrong go on from now"},
		{use: "locks", setUp: locks, help: locksHelp, summary: "who holds which named lock",
			parts: []command{
				{use: "release KIND NAME", args: 2, setUp: releaseLock, help: releaseLockHelp,
					summary: "tell the holder of a named lock to leave"},
			}},
		{use: "queue", setUp: queues, help: queueHelp, summary: "the tasks of queues",
			parts: []command{
				{use: "list QUEUE", args: 1, setUp: tasksOf, help: listHelp,
					summary: "the tasks of a queue"},
				{use: "requeue QUEUE ID...", args: 1000, setUp: requeue, help: requeueHelp,
					summary: "make tasks pending again"},
				{use: "prune QUEUE", args: 1, setUp: prune, help: pruneHelp,
					summary: "delete tasks that have ended"},
			}},
		{use: "exec [flags] -- COMMAND", args: anyProgram, setUp: runCommand, help: execHelp,
			summary: "run a command while this machine holds the lock"},
		{use: "fence", setUp: fence, help: fenceHelp,
			summary: "the SQL that guards a transaction of such a command"},
		{use: "lead", setUp: sidecars, help: leadHelp,
			summary: "a sidecar: campaign for the lock, tell over HTTP who leads"},
		{use: "migrate", setUp: migrate, help: migrateHelp, summary: "bring the tables up to date"},
		{use: "doctor", setUp: examine, help: doctorHelp,
			summary: "look for what is wrong with the set-up"},
		{use: "man", setUp: man, help: manHelp, summary: "the manual page", withoutDatabase: true},
		{use: "version", setUp: version, summary: "of this program, and of the tables it knows",
			withoutDatabase: true},
	}
}

// root has all commands.
func (t *tool) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "schedlock [flags] command [flags] [arguments]",
		Short: whatItDoes,
		Long:  "schedlock: " + whatItDoes + ".",
		Example: "  schedlock --db /srv/app/app.db status\n" +
			"  " + databaseVariable + "=postgres://app@db/app schedlock history -n 5",
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
	}
	root.SetOut(t.out)
	root.SetErr(io.Discard) // run says what went wrong
	t.globalFlags(root.PersistentFlags())
	asked := root.Flags().Bool("version", false, "what the command version says")
	root.RunE = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return t.unknown(args[0])
		case *asked:
			t.json = t.json || t.form == "json"
			_, err := version(t, nil)(root.Context())
			return err
		}
		fmt.Fprint(t.errOut, root.UsageString())
		return wrong("there is no command")
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd == root && len(args) > 0 {
			return t.unknown(args[0])
		}
		t.json = t.json || asksForJSON(t.argv)
		return &usageError{commandOf(cmd), flags.Explain(err, append(t.argv, t.dsn)...) +
			t.meantFlag(cmd.Flags(), err)}
	})
	root.SetUsageTemplate(
		strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", "FlagUsagesWrapped 80") +
			"{{if not .HasParent}}\nExit codes:\n" + exitHelp + "{{end}}")
	for i := range commands {
		root.AddCommand(t.cobra(&commands[i]))
	}
	root.SetHelpCommand(t.helpCommand(root))
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.InitDefaultCompletionCmd()
	t.completeCommand(root)
	complete(root, "db", cobra.ShellCompDirectiveDefault)
	complete(root, "output", cobra.ShellCompDirectiveNoFileComp, outputs[1:]...)
	return root
}

// outputs are those of the output; without -o it is made for a terminal.
var outputs = []string{"", "json", "wide"}

func (t *tool) globalFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.dsn, "db", "", "`DSN` of the database: the path of a SQLite file, a file: "+
		"URI, a postgres:// or a mysql:// URL; default: the environment variable "+databaseVariable)
	flags.StringVar(&t.inside, "schema", "", "the `NAME` of the app's schema on PostgreSQL "+
		"(postgres.WithSchema), if any")
	flags.StringVarP(&t.form, "output", "o", "", "`FORM` of the output: json, or wide for tables "+
		"with all columns, uncut")
	flags.BoolVar(&t.json, "json", false, "the same as -o json")
	flags.BoolVar(&t.local, "local", false, "times of this machine's zone instead of UTC, except "+
		"in JSON")
	flags.DurationVar(&t.timeout, "timeout", defaultTimeout, "how long the database may take to "+
		"answer; migrate: 1m")
	flags.BoolVar(&t.noColor, "no-color", false, "no colours (also: NO_COLOR)")
}

func (t *tool) cobra(c *command) *cobra.Command {
	long, example, _ := strings.Cut(c.help, "\nExamples:\n")
	cmd := &cobra.Command{Use: c.use, Short: c.summary, Long: strings.TrimSpace(long),
		Example: strings.TrimSuffix(example, "\n"), Args: cobra.ArbitraryArgs}
	action := c.setUp(t, cmd.Flags())
	if c.args == anyProgram {
		cmd.Flags().SetInterspersed(false)
		cmd.ValidArgsFunction = func(*cobra.Command, []string,
			string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t.args = args
		err := t.perform(cmd.Context(), cmd, c, action)
		if usage, ok := errors.AsType[*usageError](err); ok {
			usage.command = commandOf(cmd)
		}
		return err
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if words := f.Annotations[choices]; len(words) > 0 {
			complete(cmd, f.Name, cobra.ShellCompDirectiveNoFileComp, words...)
		}
	})
	for i := range c.parts {
		cmd.AddCommand(t.cobra(&c.parts[i]))
	}
	return cmd
}

// choices are the words that a flag takes.
const choices = "choices"

func choice(flags *pflag.FlagSet, p *string, name, preset, usage string, words ...string) {
	flags.StringVar(p, name, preset, usage+": "+strings.Join(words, ", "))
	_ = flags.SetAnnotation(name, choices, words) // there is the flag
}

func limitFlag(flags *pflag.FlagSet, usage string) *int {
	return flags.IntP("limit", "n", 20, usage)
}

// complete says what a flag is completed with.
func complete(cmd *cobra.Command, name string, directive cobra.ShellCompDirective,
	words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, directive))
}

// commandOf is what stands behind "schedlock".
func commandOf(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

// parts is what an error adds about a command that has parts.
func parts(cmd *cobra.Command) string {
	if !cmd.HasAvailableSubCommands() {
		return ""
	}
	return ": only " + strings.Join(convert(cmd.Commands(), (*cobra.Command).Name), ", ")
}

func (t *tool) helpCommand(root *cobra.Command) *cobra.Command {
	names := convert(commands, command.name)
	return &cobra.Command{Use: "help [COMMAND]", Short: "help for a command",
		ValidArgs: append(names, "completion", "help"), Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			t.args = args
			cmd, rest, err := root.Find(args)
			switch {
			case err != nil || cmd == root && len(rest) > 0:
				return t.unknown(args[0])
			case len(rest) > 0:
				return wrong("help does not take %s", t.shown(rest[0]))
			}
			cmd.InitDefaultHelpFlag() // as with --help
			return cmd.Help()
		}}
}

// completeCommand makes the answers to wrong calls of the command completion errors, too.
func (t *tool) completeCommand(root *cobra.Command) {
	cmd, _, _ := root.Find([]string{"completion"})
	shells := strings.Join(convert(cmd.Commands(), (*cobra.Command).Name), ", ")
	takes := func(_ *cobra.Command, args []string) error {
		if t.args = args; len(args) > 0 {
			return wrong("completion does not take %s: only %s", t.shown(args[0]), shells)
		}
		return nil
	}
	cmd.Short = "a script that completes commands and flags"
	cmd.Args = takes
	cmd.RunE = func(*cobra.Command, []string) error {
		return wrong("completion needs the name of a shell: %s", shells)
	}
	for _, shell := range cmd.Commands() {
		shell.Args = takes
	}
}

// unknown says that there is no such command, and which one may be meant.
func (t *tool) unknown(name string) error {
	t.json = t.json || asksForJSON(t.argv)
	shown, meant := message.Argument(name, append(t.argv, t.dsn)...), ""
	if strings.Contains(shown, name) { // else nothing near it is, either
		names := convert(commands, command.name)
		meant = didYouMean(name, "", append(names, "completion", "help"))
	}
	return wrong("command %s is unknown%s", shown, meant)
}

// meantFlag is what an error about an unknown flag adds: the flag that may be meant, or "".
func (t *tool) meantFlag(flags *pflag.FlagSet, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	name := cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName())
	if !message.IsShown(name, append(t.argv, t.dsn)...) {
		return "" // nor is anything near it
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	return didYouMean(name, "--", known)
}
