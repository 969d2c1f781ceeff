package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/alecthomas/kong"
)

// The parser of one noun has the help and the errors of the parser of all nouns.
func TestTheParserOfANounIsThatOfAllNouns(t *testing.T) {
	out := &bytes.Buffer{}
	a := &app{ctx: context.Background(), stdout: out, stderr: out}
	all, err := a.newParser(&grammar{})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(parser *kong.Kong, args []string) (text string) {
		out.Reset()
		parser.Exit = func(code int) { panic(code) } // help ends the process
		defer func() {
			if code := recover(); code != nil {
				text = fmt.Sprintf("%v\n%s", code, out)
			}
		}()
		_, err := parser.Parse(args)
		return fmt.Sprintf("%v\n%s", err, out)
	}
	var compare func(parser *kong.Kong, n *kong.Node, path []string)
	answers := map[string]bool{}
	compare = func(parser *kong.Kong, n *kong.Node, path []string) {
		for _, end := range []string{"--help", "--no-such-flag", "no-such-argument"} {
			args := append(slices.Clone(path), end)
			got, want := answer(parser, args), answer(all, args)
			answers[got] = true
			if got != want {
				t.Errorf("meterplex %v:\n%s\nwith all nouns:\n%s", args, got, want)
			}
		}
		for _, child := range n.Children {
			compare(parser, child, append(slices.Clone(path), child.Name))
		}
	}
	narrow := 0
	for _, noun := range all.Model.Children {
		parser, err := a.parserFor(&grammar{}, noun.Name)
		if err != nil {
			t.Fatal(err)
		}
		if len(parser.Model.Children) == 1 {
			narrow++
		}
		compare(parser, noun, []string{noun.Name})
	}
	if len(answers) < 150 {
		t.Errorf("only %d answers differ from each other", len(answers))
	}
	if n := len(all.Model.Children); narrow != n-2 { // without help and completion
		t.Errorf("%d of %d nouns have a parser of their own", narrow, n)
	}
}
