package meterplex

import (
	"bufio"
	"bytes"
	"encoding/json"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/must"
)

// TestEveryCodeOfTheSourceIsInTheTable: clients branch on codes, and the reference page, the OpenAPI
// document and the command line derive from the table.
func TestEveryCodeOfTheSourceIsInTheTable(t *testing.T) {
	s := readCodes(t)
	for _, suffix := range slices.Sorted(maps.Keys(s.suffixes)) {
		for _, name := range bodyMembers(t) {
			s.answered[name+suffix] = append(s.answered[name+suffix], s.suffixes[suffix]...)
		}
	}
	if len(s.answered) < 100 || len(s.suffixes) != 1 {
		t.Fatalf("only %d codes and %d suffixes are found", len(s.answered), len(s.suffixes))
	}
	for _, name := range slices.Sorted(maps.Keys(s.answered)) {
		if _, found := codes.Find(name); !found {
			t.Errorf("%s: the code %q has no entry in domain/codes", s.answered[name][0], name)
		}
	}
	for _, c := range codes.All() {
		if s.answered[c.Name] == nil {
			t.Errorf("domain/codes has the entry %q, which the source never answers", c.Name)
		}
	}
	for _, at := range s.unresolved {
		t.Errorf("%s: the code is neither a constant nor another code: the table cannot be compared with it", at)
	}
}

// bodyMembers returns the names of all members of request bodies in snake case, and body.
func bodyMembers(t *testing.T) []string {
	t.Helper()
	handler, err := new(http.Server).Handler()
	must.OK(t, err)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	type schema struct {
		Ref        string `json:"$ref"`
		Items      json.RawMessage
		Properties map[string]json.RawMessage
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string
			RequestBody struct {
				Content map[string]struct{ Schema json.RawMessage }
			}
		}
		Components struct{ Schemas map[string]json.RawMessage }
	}
	must.OK(t, json.Unmarshal(w.Body.Bytes(), &doc))
	names := map[string]bool{"body": true}
	var walk func(raw json.RawMessage)
	walk = func(raw json.RawMessage) {
		var s schema
		if json.Unmarshal(raw, &s) != nil {
			return
		}
		if s.Ref != "" {
			walk(doc.Components.Schemas[filepath.Base(s.Ref)])
		}
		walk(s.Items)
		for name, member := range s.Properties {
			names[capital.ReplaceAllStringFunc(name, func(c string) string { return "_" + strings.ToLower(c) })] = true
			walk(member)
		}
	}
	for _, item := range doc.Paths {
		for _, o := range item {
			if o.OperationID != "ingestUsage" { // its events are decoded by package intake
				walk(o.RequestBody.Content["application/json"].Schema)
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// answering are the folders whose packages answer codes; those of cmd repeat them.
var answering = []string{"./commands/...", "./domain/...", "./http/...", "./infra/...", "./projections/..."}

// answers holds the codes that the source answers, each with its places.
type answers struct {
	set        *token.FileSet
	answered   map[string][]string
	suffixes   map[string][]string // of codes that begin with the name of a member
	unresolved []string
}

// readCodes type-checks the service's packages and collects each constant that is the value of a
// field, parameter, variable or constant named code.
func readCodes(t *testing.T) *answers {
	t.Helper()
	var failed bytes.Buffer
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}\t{{range " +
		".GoFiles}}{{.}} {{end}}"}, answering...)...)
	list.Stderr = &failed
	out, err := list.Output()
	if err != nil {
		t.Fatal(err, failed.String())
	}
	s := &answers{set: token.NewFileSet(), answered: map[string][]string{}, suffixes: map[string][]string{}}
	exported, ours := map[string]string{}, [][]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		row := strings.Split(lines.Text(), "\t")
		if exported[row[0]] = row[1]; strings.HasPrefix(row[0], module) {
			ours = append(ours, row)
		}
	}
	from := importer.ForCompiler(s.set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
	for _, row := range ours {
		var files []*ast.File
		for name := range strings.FieldsSeq(row[3]) {
			file, err := parser.ParseFile(s.set, filepath.Join(row[2], name), nil, 0)
			must.OK(t, err)
			files = append(files, file)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
			Defs: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: from}).Check(row[0], s.set, files, info); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool { s.visit(info, n); return true })
		}
	}
	return s
}

// visit adds the codes that a node gives to fields, parameters, variables and constants.
func (s *answers) visit(info *types.Info, n ast.Node) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		shape, ok := info.Types[n].Type.Underlying().(*types.Struct)
		if p, pointer := info.Types[n].Type.Underlying().(*types.Pointer); pointer {
			shape, ok = p.Elem().Underlying().(*types.Struct)
		}
		for i, e := range n.Elts {
			if pair, named := e.(*ast.KeyValueExpr); named && ok {
				s.give(info, info.Uses[pair.Key.(*ast.Ident)], pair.Value)
			} else if ok {
				s.give(info, shape.Field(i), e)
			}
		}
	case *ast.CallExpr:
		signature, ok := info.Types[n.Fun].Type.(*types.Signature)
		for i := 0; ok && i < signature.Params().Len() && i < len(n.Args); i++ {
			s.give(info, signature.Params().At(i), n.Args[i])
		}
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			if len(n.Lhs) == len(n.Rhs) {
				s.give(info, assigned(info, to), n.Rhs[i])
			}
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				s.give(info, info.Defs[name], n.Values[i])
			}
		}
	}
}

func assigned(info *types.Info, to ast.Expr) types.Object {
	switch to := to.(type) {
	case *ast.Ident:
		if o := info.Defs[to]; o != nil {
			return o
		}
		return info.Uses[to]
	case *ast.SelectorExpr:
		return info.Uses[to.Sel]
	}
	return nil
}

var (
	codeName = regexp.MustCompile(`^[cC]ode([A-Z]\w*)?$`)
	capital  = regexp.MustCompile(`[A-Z]`)
)

// give adds the value that a field, parameter, variable or constant named code receives.
func (s *answers) give(info *types.Info, to types.Object, value ast.Expr) {
	if to == nil || to.Pkg() == nil || !strings.HasPrefix(to.Pkg().Path(), module) || !codeName.MatchString(to.Name()) ||
		!isText(to.Type()) {
		return
	}
	at := s.set.Position(value.Pos()).String()
	if v := info.Types[value].Value; v != nil {
		text := constant.StringVal(v)
		s.answered[text] = append(s.answered[text], at)
		return
	}
	if sum, ok := value.(*ast.BinaryExpr); ok && info.Types[sum.Y].Value != nil {
		text := constant.StringVal(info.Types[sum.Y].Value)
		s.suffixes[text] = append(s.suffixes[text], at)
		return
	}
	if call, ok := value.(*ast.CallExpr); ok {
		value = call.Fun
	}
	if selected, ok := value.(*ast.SelectorExpr); ok {
		value = selected.Sel
	}
	if from, ok := value.(*ast.Ident); !ok || !codeName.MatchString(from.Name) {
		s.unresolved = append(s.unresolved, at)
	}
}

func isText(t types.Type) bool {
	return t == types.Typ[types.String] || t == types.Typ[types.UntypedString]
}
