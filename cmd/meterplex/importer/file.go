package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"unicode/utf8"
)

// head is how many bytes of a file tell what it is.
const head = 4096

// openText returns the text of a file: without gzip, which it detects by the file's first bytes.
func openText(file io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(file, head)
	if first, _ := in.Peek(2); bytes.Equal(first, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		in = bufio.NewReaderSize(z, head)
	}
	return in, noCSV(in)
}

// skipMark skips a byte order mark.
func skipMark(in *bufio.Reader) error {
	if first, _ := in.Peek(3); string(first) == "\uFEFF" {
		if _, err := in.Discard(3); err != nil {
			return fmt.Errorf("read the file: %w", err)
		}
	}
	return nil
}

// formats are the first bytes of files that are no CSV, and the remedy.
var formats = []struct{ starts, name, remedy string }{
	{"PK\x03\x04", "a workbook (.xlsx) or another ZIP archive", "export its sheet as CSV in UTF-8"},
	{"\xd0\xcf\x11\xe0", "a workbook (.xls)", "export its sheet as CSV in UTF-8"},
	{"\xff\xfe", "UTF-16", toUTF8}, {"\xfe\xff", "UTF-16", toUTF8},
	{"\xfd7zXZ", "xz", "decompress it, e.g. xz -dc FILE | meterplex usage import - --name NAME"},
	{"\x28\xb5\x2f\xfd", "zstd", "decompress it, e.g. zstd -dc FILE | meterplex usage import - --name NAME"},
	{"\x04\x22\x4d\x18", "lz4", "decompress it, e.g. lz4 -dc FILE | meterplex usage import - --name NAME"},
	{"BZh", "bzip2", "decompress it, e.g. bzip2 -dc FILE | meterplex usage import - --name NAME"},
	{"7z\xbc\xaf", "a 7-Zip archive", "unpack it"},
	{"PAR1", "Parquet", "convert it, e.g. duckdb -c \"COPY 'FILE' TO 'NEW.csv'\""},
	{"ORC", "ORC", "convert it to CSV"}, {"Obj\x01", "Avro", "convert it to CSV"},
	{"SQLite format 3", "an SQLite database", "export a table, e.g. sqlite3 -header -csv FILE 'SELECT …'"},
	{"PGCOPY\n", "a binary copy of PostgreSQL", "write it WITH (FORMAT csv, HEADER)"},
	{"%PDF", "PDF", "export it as CSV"},
}

// page matches the beginning of HTML and XML.
var page = regexp.MustCompile(`(?i)^<(\?xml|!doctype|html)`)

// isControl reports whether a character is in no text.
func isControl(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != '\f' }

// toUTF8 is the remedy of another encoding.
const toUTF8 = "convert it to UTF-8, e.g. iconv -f UTF-16 -t UTF-8 FILE > NEW"

// noCSV recognizes common files that are no CSV in UTF-8.
func noCSV(in *bufio.Reader) error {
	first, err := in.Peek(head)
	if err != nil && len(first) == 0 && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the file: %w", err)
	}
	binary := bytes.ContainsFunc(first, isControl)
	for _, f := range formats {
		// A column may be named PAR1.
		if bytes.HasPrefix(first, []byte(f.starts)) && (binary || f.starts[len(f.starts)-1] >= utf8.RuneSelf) {
			return fmt.Errorf("the file is %s: %s", f.name, f.remedy)
		}
	}
	text := bytes.TrimSpace(bytes.TrimPrefix(first, []byte("\uFEFF")))
	switch {
	case bytes.IndexByte(first, 0) >= 0:
		return errors.New("the file is UTF-16 or no text: " + toUTF8)
	case page.Match(text):
		return errors.New("the file is HTML or XML: was a web page saved instead of it? Export it as CSV")
	case isJSON(text):
		return errors.New("the file is JSON: export it as CSV, e.g. jq -r '[.at, .amount] | @csv'; meterplex usage send sends lines " +
			"that are events in JSON")
	case bytes.IndexByte(text, '\r') >= 0 && bytes.IndexByte(first, '\n') < 0 && len(first) > bytes.IndexByte(first, '\r')+1:
		return errors.New(`the lines of the file end with CR alone: convert them, e.g. tr '\r' '\n' < FILE > NEW`)
	}
	return nil
}

// isJSON reports whether a text begins as an object or an array of JSON does.
func isJSON(text []byte) bool {
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return false
	}
	next := bytes.TrimSpace(text[1:])
	return len(next) == 0 || bytes.IndexByte([]byte(`"{[]}`), next[0]) >= 0
}
