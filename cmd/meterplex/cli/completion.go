package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionCmd writes completion scripts.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help returns the long help text.
func (CompletionCmd) Help() string {
	return `Load it in the running shell, or from its start-up file:

    source <(meterplex completion bash)

    source <(meterplex completion zsh)

    meterplex completion fish | source`
}

// Run writes the script.
func (c *CompletionCmd) Run(p *program) error {
	all := completions(nil, p.parser.Model.Node, nil)
	switch c.Shell {
	case "bash":
		return writeBash(p.Stdout, all)
	case "zsh":
		return writeZsh(p.Stdout, all)
	default:
		return writeFish(p.Stdout, all)
	}
}

// completion is a command path and the words that may follow it.
type completion struct {
	path  string // "usage send", "" for the top
	words []string
}

// completions walks the command line's definition, so that a script names only existing
// commands and flags.
func completions(path []string, n *kong.Node, inherited []string) []completion {
	flags := slices.Clone(inherited)
	for _, f := range n.Flags {
		if !f.Hidden {
			flags = append(flags, "--"+f.Name)
		}
	}
	here := completion{path: strings.Join(path, " ")}
	var below []completion
	for _, child := range n.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			here.words = append(here.words, child.Name)
			below = append(below, completions(append(slices.Clone(path), child.Name), child, flags)...)
		}
	}
	for _, p := range n.Positional {
		here.words = append(here.words, p.EnumSlice()...)
	}
	here.words = append(here.words, flags...)
	return append([]completion{here}, below...)
}

// writeCases writes "'usage send') words='…';;" lines.
func writeCases(w io.Writer, all []completion) {
	for _, p := range all {
		fmt.Fprintf(w, "    '%s') words='%s';;\n", p.path, strings.Join(p.words, " "))
	}
}

// knownPaths returns a pattern that matches every command's path.
func knownPaths(all []completion) string {
	var quoted []string
	for _, p := range all[1:] {
		quoted = append(quoted, "'"+p.path+"'")
	}
	return strings.Join(quoted, "|")
}

func writeBash(w io.Writer, all []completion) error {
	fmt.Fprintf(w, `_meterplex() {
  local path= next= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    next="${path:+$path }${COMP_WORDS[i]}"
    case "$next" in %s) path=$next;; esac
  done
  case "$path" in
`, knownPaths(all))
	writeCases(w, all)
	_, err := io.WriteString(w, `  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _meterplex meterplex
`)
	return err
}

func writeZsh(w io.Writer, all []completion) error {
	fmt.Fprintf(w, `#compdef meterplex
_meterplex() {
  local where= next= words_here= i
  for ((i = 2; i < CURRENT; i++)); do
    next="${where:+$where }${words[i]}"
    case "$next" in (%s) where=$next;; esac
  done
  local words_here
  case "$where" in
`, knownPaths(all))
	for _, p := range all {
		fmt.Fprintf(w, "    ('%s') words_here='%s';;\n", p.path, strings.Join(p.words, " "))
	}
	_, err := io.WriteString(w, `  esac
  compadd -- ${=words_here}
  _files
}
compdef _meterplex meterplex
`)
	return err
}

func writeFish(w io.Writer, all []completion) error {
	fmt.Fprint(w, `function __meterplex_at
  set -l path ''
  for word in (commandline -opc)[2..-1]
    set -l next (string trim -- "$path $word")
    contains -- "$next" $__meterplex_paths; and set path $next
  end
  test "$path" = "$argv[1]"
end
`)
	fmt.Fprintf(w, "set -g __meterplex_paths %s\n", strings.ReplaceAll(knownPaths(all), "|", " "))
	for _, p := range all {
		if _, err := fmt.Fprintf(w, "complete -c meterplex -n \"__meterplex_at '%s'\" -a '%s'\n", p.path,
			strings.Join(p.words, " ")); err != nil {
			return err
		}
	}
	return nil
}
