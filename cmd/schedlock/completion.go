package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

const completionHelp = `It prints a script for a shell. In bash, and in zsh after compinit,
source it; in fish, pipe it to source.

Examples:
  schedlock completion fish | source
  source <(schedlock completion bash)
`

// The scripts call the program for the words before the cursor, and the word at it.
// What the shell itself knows to complete it answers with a word of its own.
const (
	files    = ":files"
	programs = ":programs"
)

var completionScripts = map[string]string{
	// bash splits words at COMP_WORDBREAKS, too, as in --db=a or postgres://a@b, and
	// replaces what is behind the last of them only.
	"bash": `_schedlock() {
  local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" words word before
  IFS=$' \t\n' read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=("")
  word="${words[${#words[@]}-1]}"
  before="${word%"${word##*[=:@]}"}"
  COMPREPLY=($("${COMP_WORDS[0]}" completion words -- "${words[@]:1}" 2>/dev/null))
  case "${COMPREPLY[0]}" in
    :files) COMPREPLY=($(compgen -f -- "${word#--*=}")) ;;
    :programs) COMPREPLY=($(compgen -c -f -- "$word")) ;;
    *) COMPREPLY=("${COMPREPLY[@]#"$before"}") ;;
  esac
}
complete -o filenames -F _schedlock schedlock
`,
	"zsh": `_schedlock() {
  local -a found
  found=("${(@f)$("$words[1]" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case "$found[1]" in
    :files) compset -P '--*='; _files ;;
    :programs) _command_names -e ;;
    *) compadd -a -- found ;;
  esac
}
compdef _schedlock schedlock
`,
	"fish": `function __schedlock
  set -l words (commandline -opc) (commandline -ct)
  set -l found ($words[1] completion words -- $words[2..] 2>/dev/null)
  switch "$found[1]"
    case :files
      set -l flag (string match -r -- '^--[^=]*=' (commandline -ct))
      printf "$flag%s\n" (__fish_complete_path (string replace -- "$flag" '' (commandline -ct)))
    case :programs
      __fish_complete_command
    case '*'
      printf '%s\n' $found
  end
end
complete -c schedlock -f -a '(__schedlock)'
`,
}

func completion(t *tool, _ *flag.FlagSet) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		if len(t.args) > 0 && t.args[0] == "words" {
			for _, word := range candidates(t.args[1:]) {
				fmt.Fprintln(t.out, word)
			}
			return exitDone, nil
		}
		if len(t.args) > 1 {
			return 0, wrong("completion does not take %s", t.shown(t.args[1]))
		}
		shell := strings.Join(t.args, "")
		script, ok := completionScripts[shell]
		if !ok {
			return 0, wrong("shell %s is none of bash, zsh and fish", t.shown(shell))
		}
		fmt.Fprint(t.out, script)
		return exitDone, nil
	}
}

// values are what a flag or the first argument of a command can be.
var values = map[string][]string{
	"--db":       {files},
	"--o":        {"json", "wide"},
	"--status":   allStatuses,
	"--state":    allStates,
	"--restart":  {restartNever, restartOnFailure, restartAlways},
	"completion": {"bash", "zsh", "fish"},
	"locks":      {"release"},
	"queue":      {"count", "list", "requeue", "prune"},
}

// candidates are what the last word can become, those before it being given.
func candidates(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	last := words[len(words)-1]
	if name, _, ok := strings.Cut(last, "="); ok && strings.HasPrefix(name, "--") {
		found := candidates(append(slices.Clone(words[:len(words)-1]), name, last[len(name)+1:]))
		for i, word := range found {
			if word != files {
				found[i] = name + "=" + word
			}
		}
		return found
	}
	var cmd *command
	flags := (&tool{}).flagSet("")
	arguments, value := 0, "" // value: the flag that the next word belongs to
	for _, word := range words[:len(words)-1] {
		name, _, whole := strings.Cut("--"+strings.TrimLeft(word, "-"), "=")
		switch {
		case value != "":
			value = ""
		case word == "--" && cmd != nil && cmd.maxArgs == anyProgram:
			arguments++
		case strings.HasPrefix(word, "-"):
			if f := flags.Lookup(name[2:]); f != nil && !isBool(f) && !whole {
				value = name
			}
		case cmd == nil:
			if cmd = findCommand(word); cmd == nil {
				return nil
			}
			flags = flagsOf(cmd)
		default:
			arguments++
		}
	}
	var found []string
	switch {
	case value != "":
		found = values[value]
	case cmd != nil && cmd.maxArgs == anyProgram && arguments > 0:
		found = []string{programs}
		if arguments > 1 || words[len(words)-2] != "--" {
			found = []string{files}
		}
	case strings.HasPrefix(last, "-"):
		flags.VisitAll(func(f *flag.Flag) {
			if len(f.Name) > 1 {
				found = append(found, "--"+f.Name)
			}
		})
	case cmd == nil, cmd.name == "help" && arguments == 0:
		found = convert(commands, func(c command) string { return c.name })
	case arguments == 0:
		found = values[cmd.name]
	}
	return slices.DeleteFunc(slices.Clone(found), func(word string) bool {
		return word[0] != ':' && !strings.HasPrefix(word, last)
	})
}

// flagsOf are the flags of a command, and those of every command.
func flagsOf(c *command) *flag.FlagSet {
	t := &tool{errOut: io.Discard}
	flags := t.flagSet(c.name)
	if c.setUp != nil {
		c.setUp(t, flags)
	}
	return flags
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
