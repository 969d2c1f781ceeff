package console

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Bounds of a list of objects as rows of inputs. A longer list is written as JSON, which keeps the page small.
const (
	maxRows   = 40
	spareRows = 3
)

// completeRows takes kinds, hints and choices of a row's inputs from the schema of an entry.
func (in *Field) completeRows(entry *huma.Schema, schemas huma.Registry) {
	for i := range in.Rows {
		cell := &in.Rows[i]
		if member := entry.Properties[cell.Name]; member != nil {
			cell.complete(member, schemas, slices.Contains(entry.Required, cell.Name))
		}
		cell.Label = labelOf(cell.Name)
		if cell.Kind == "select" {
			cell.Options = append([]string{""}, cell.Options...)
		}
	}
}

// cell returns the input of a row.
func (in *Field) cell(row, member int) Field {
	cell := in.Rows[member]
	cell.Name = fmt.Sprintf("%s.%d.%s", in.Name, row, cell.Name)
	return cell
}

var cellForm = regexp.MustCompile(`^[a-zA-Z]+\.[0-9]{1,2}\.[a-zA-Z]+$`)

// owns reports whether a field of a form is the input, or one of its rows.
func (in *Field) owns(name string) bool {
	if in.Name == name || !cellForm.MatchString(name) {
		return in.Name == name
	}
	parts := strings.Split(name, ".")
	return parts[0] == in.Name && slices.ContainsFunc(in.Rows, func(cell Field) bool { return cell.Name == parts[2] })
}

// inRows reports whether a form holds the list as rows, and not as JSON.
func (in *Field) inRows(f Form) bool { return in.Rows != nil && !f.values.Has(in.Name) }

// rows returns the objects of the rows that are not empty.
func (in *Field) rows(f Form) ([]map[string]any, error) {
	list := []map[string]any{}
	for i := range maxRows + spareRows {
		row := map[string]any{}
		for j := range in.Rows {
			cell := in.cell(i, j)
			if cell.written(f) == "" {
				continue
			}
			value, err := cell.value(f)
			if err != nil {
				return nil, err
			}
			row[in.Rows[j].Name] = value
		}
		if len(row) > 0 {
			list = append(list, row)
		}
	}
	return list, nil
}

// rowsOf returns the rows that the form shows: those of the last attempt, else those of the list, and empty ones. Without rows the list is
// JSON.
func (in *Field) rowsOf(form string, target Doc, again Form) (rows [][]fieldView) {
	list := Items(target[in.Name])
	if list == nil && Text(target[in.Name]) != "" || len(list) > maxRows || again.values != nil && !in.inRows(again) {
		return nil
	}
	for i := range min(len(list)+spareRows, maxRows+spareRows) {
		var row []fieldView
		for j := range in.Rows {
			cell := in.cell(i, j)
			shown := Doc{}
			if i < len(list) {
				shown[cell.Name] = Member(list[i], in.Rows[j].Name)
			}
			view := fieldOf(cell, form, shown, again.values)
			view.Label += ", row " + strconv.Itoa(i+1)
			if choices := Items(target[in.Rows[j].Name+"Choices"]); choices != nil {
				view.List = form + "-" + in.Rows[j].Name
			}
			row = append(row, view)
		}
		rows = append(rows, row)
	}
	return rows
}

// lists returns the suggestions of the rows' inputs, by the ids of their elements.
func (in *Field) lists(form string, target Doc) (lists []suggestions) {
	for _, cell := range in.Rows {
		if choices := Items(target[cell.Name+"Choices"]); choices != nil {
			lists = append(lists, suggestions{form + "-" + cell.Name, Texts(choices)})
		}
	}
	return lists
}

type suggestions struct {
	ID     string
	Values []string
}
