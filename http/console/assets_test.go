package console

import (
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

// TestAssetsAreTheListOfTheCode: each file that is not our own has its version, hash and licence in the list.
func TestAssetsAreTheListOfTheCode(t *testing.T) {
	if err := checkAssets(); err != nil {
		t.Error(err)
	}
	var listed, licences []string
	for _, a := range assets() {
		listed = append(listed, a.name)
		if a.origin == "" && a.hash+a.version+a.licence == "" && strings.HasPrefix(a.name, "console.") {
			continue // our own
		}
		licences = append(licences, a.licence)
		text, err := assetFiles.ReadFile("assets/licences/" + a.licence)
		if err != nil || len(text) < 200 || a.version == "" || len(a.hash) != 64 || !strings.HasPrefix(a.origin, "https://") {
			t.Errorf("%s has no origin, version, SHA-256 or licence: %v", a.name, err)
		}
	}
	files := func(dir string) (names []string) {
		entries, err := fs.ReadDir(assetFiles, dir)
		must.OK(t, err)
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		return names
	}
	for dir, want := range map[string][]string{"assets": listed, "assets/licences": licences} {
		slices.Sort(want)
		if got := files(dir); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s holds %q, the list %q", dir, got, want)
		}
	}
}

// TestTemplatesHoldNoScriptAndNoStyle: the CSP refuses them.
func TestTemplatesHoldNoScriptAndNoStyle(t *testing.T) {
	err := fs.WalkDir(templateFiles, "templates", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := templateFiles.ReadFile(path)
		for _, refused := range []string{" style=", "<style", "javascript:", " onclick=", " onload=", " onerror=", " onsubmit=",
			" onchange=",
			"<script>", "hx-on", "hx-vals"} {
			if strings.Contains(strings.ToLower(string(text)), refused) {
				t.Errorf("%s holds %q", path, refused)
			}
		}
		return err
	})
	must.OK(t, err)
}

// TestEachAssetIsServedAtAnAddressOfItsContent: a page of one release never loads a file of another.
func TestEachAssetIsServedAtAnAddressOfItsContent(t *testing.T) {
	f := newFixture(t)
	for _, a := range assets() {
		got := f.Get(assetPath(a.name), "")
		content, _ := assetFiles.ReadFile("assets/" + a.name)
		if got.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s has no Content-Security-Policy", a.name)
		}
		if got.Code != http.StatusOK || got.Body.String() != string(content) || got.Header().Get("Content-Type") != a.media {
			t.Errorf("%s: %d %s, %d bytes", a.name, got.Code, got.Header().Get("Content-Type"), got.Body.Len())
		}
	}
}
