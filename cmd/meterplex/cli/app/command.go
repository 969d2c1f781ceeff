package app

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command is a command of one request: its flags, arguments, help and request follow from the operation.
type Command struct {
	Name     string // the words behind meterplex
	Op       string // the id of the operation
	Operator string // the id of the operation that --operator requests in place of --tenant; "": no such flag
	Help     string // "": the summary of the operation
	More     string // long help, behind the description of the operation
	Args     string // inputs that are arguments, with ? behind the name of an optional one; "": those of the path but the tenant
	Columns  string // of the table of a list, which has --limit; "": it is no list, or run prints it
	Done     string // the word for the completed action, if the answer has no body; "": Removed
	File     bool   // --file gives the body in place of the flags

	// of flags, by input, as kong reads them, before those that follow from the input; "-": no flag
	Tags  map[string]string
	Read  map[string]func(string) (any, error)    // reads the text of a flag, by input
	Own   any                                     // a struct of further flags
	Amend func(*App, *Call, map[string]any) error // changes the values of the inputs, by name
	Run   func(*App, *Call) error                 // nil: send the request, and print the answer
}

// Limit holds the maximum number of rows of a list.
type Limit struct {
	Limit int `placeholder:"N" help:"Maximum number of rows; 0, the default, means all."`
}

// common holds the flags that follow from no input. A command has those of them that its operation has a use for.
type common struct {
	Operator       bool   `xor:"owner" required:"" help:"Operator keys, which belong to no tenant."`
	File           string `placeholder:"FILE" help:"Read the body of the request from a JSON file instead."`
	Limit          int    `placeholder:"N" help:"Maximum number of rows; 0, the default, means all."`
	IdempotencyKey string `placeholder:"TEXT" help:"A repeat with the same text gets the first answer. Not given: a new text for each call."`
	Reason         string `placeholder:"TEXT" help:"The reason, recorded in the log."`
}

// NounType returns the type that kong reads a noun from: its commands by hand, then those of one request.
func NounType(list []Command, path string, byHand reflect.Type) reflect.Type {
	if !slices.ContainsFunc(list, func(c Command) bool { return strings.HasPrefix(c.Name, path+" ") }) {
		return byHand
	}
	var fields []reflect.StructField
	for field := range byHand.Fields() {
		field.Type = NounType(list, path+" "+WordOf(field), field.Type)
		fields = append(fields, field)
	}
	for i, c := range list {
		if word, found := strings.CutPrefix(c.Name, path+" "); found && !strings.Contains(word, " ") {
			o := OperationOf(c.Op)
			tag := fmt.Sprintf(`cmd:"" name:%q help:%q`, word, cmp.Or(c.Help, o.Summary+"."))
			fields = append(fields, reflect.StructField{Name: fmt.Sprint("Request", i), Type: c.flags(o), Tag: reflect.StructTag(tag)})
		}
	}
	return reflect.StructOf(fields)
}

// WordOf returns the word of a command by hand.
func WordOf(field reflect.StructField) string {
	return cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name))
}

// flags returns the type of the flags and arguments of a command.
func (c *Command) flags(o *Operation) reflect.Type {
	var fields []reflect.StructField
	inputs := slices.Clone(o.Inputs)
	slices.SortStableFunc(inputs, func(a, b input) int { return cmp.Compare(c.rank(&a), c.rank(&b)) })
	for _, in := range inputs {
		if c.Tags[in.Name] != "-" {
			fields = append(fields, reflect.StructField{Name: in.field(), Type: c.typeOf(&in), Tag: reflect.StructTag(c.tag(&in))})
		}
	}
	if c.Own != nil {
		fields = append(fields, reflect.StructField{Name: "Own", Type: reflect.TypeOf(c.Own), Tag: `embed:""`})
	}
	has := map[string]bool{"Operator": c.Operator != "", "File": c.File, "Limit": c.Columns != "", "IdempotencyKey": o.Once &&
		o.Method == http.MethodPost, "Reason": o.Reasoned}
	for field := range reflect.TypeFor[common]().Fields() {
		if has[field.Name] {
			field.Tag = reflect.StructTag(c.Tags["--"+strings.ToLower(field.Name)]+" ") + field.Tag
			fields = append(fields, field)
		}
	}
	return reflect.StructOf(fields)
}

// argument returns the index of an input among the arguments, or -1.
func (c *Command) argument(in *input) (at int, optional bool) {
	if c.Args == "" && in.In == "path" && in.Name != "tenantId" {
		return 0, false
	}
	names := strings.Fields(c.Args)
	if at = slices.Index(names, in.Name+"?"); at >= 0 {
		return at, true
	}
	return slices.Index(names, in.Name), false
}

// rank orders arguments before required flags, and these before the others.
func (c *Command) rank(in *input) int {
	at, _ := c.argument(in)
	switch {
	case at >= 0:
		return at
	case in.Required:
		return 10
	}
	return 11
}

// typeOf returns the type of the field of an input. Its zero value says that it is not given.
func (c *Command) typeOf(in *input) reflect.Type {
	switch {
	case in.List():
		return reflect.TypeFor[[]string]()
	case in.Type == "map":
		return reflect.TypeFor[map[string]string]()
	case in.Type == "boolean":
		return reflect.TypeFor[*bool]()
	case in.Type == "integer" && c.Read[in.Name] == nil:
		return reflect.TypeFor[*int64]()
	}
	return reflect.TypeFor[*string]()
}

func (c *Command) tag(in *input) string {
	name, alias := in.flag()
	before, help := reflect.StructTag(c.Tags[in.Name]), in.help()
	absent, hasDefault := before.Lookup("default")
	_, mayLack := before.Lookup("optional")
	if hasDefault {
		help = strings.TrimSuffix(help, ".") + " (default " + absent + ")."
	}
	tag := fmt.Sprintf("%s name:%q help:%q placeholder:%q", before, name, help, in.placeholder())
	at, optional := c.argument(in)
	switch {
	case optional:
		tag += ` arg:"" optional:""`
	case at >= 0:
		tag += ` arg:""`
	case in.Required && !c.File && !hasDefault && !mayLack:
		tag += ` required:""`
	}
	if at < 0 && alias != "" {
		tag += fmt.Sprintf(" aliases:%q", alias)
	}
	if in.Name == "tenantId" && c.Operator != "" {
		tag += ` xor:"owner"`
	}
	if in.Type == "map" || in.Type == "list of object" {
		tag += ` sep:"none" mapsep:"none"`
	}
	return tag
}

// DescribeRequests returns the function that sets the long help of the commands of one request.
func DescribeRequests(list []Command) func(*kong.Kong) error {
	return func(k *kong.Kong) error {
		return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
			if n, ok := node.(*kong.Node); ok && n.Type == kong.CommandNode {
				if l := CallOf(list, n); l != nil {
					n.Detail = strings.TrimSpace(plainly(l.Description) + "\n\n" + l.More)
				}
			}
			return next(nil)
		})
	}
}

// RepairsForAReason refuses a repair without a reason.
func RepairsForAReason(_ *App, _ *Call, in map[string]any) error {
	if in["repair"] == true && in["reason"] == nil {
		return errors.New("--repair changes figures: give the reason by --reason")
	}
	return nil
}
