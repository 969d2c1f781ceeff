package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/meterplex/meterplex/http/auth"
)

//go:embed assets
var assetFiles embed.FS

// asset is a file that pages load. A test compares the list with the files of assets/.
type asset struct {
	name, media string
	// origin, version, hash (SHA-256) and licence are those of a file that is not our own; licence is a file of assets/licences.
	origin, version, hash, licence string
}

func assets() []asset {
	return []asset{
		{name: "console.css", media: "text/css; charset=utf-8"},
		{name: "console.js", media: "text/javascript; charset=utf-8"},
		{"uPlot.iife.min.js", "text/javascript; charset=utf-8", "https://github.com/leeoniya/uPlot", "1.6.32",
			"19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", "uplot.txt"},
		{"uPlot.min.css", "text/css; charset=utf-8", "https://github.com/leeoniya/uPlot", "1.6.32",
			"df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", "uplot.txt"},
	}
}

// checkAssets fails if a file that is not our own differs from its hash.
func checkAssets() error {
	var faults []error
	for _, a := range assets() {
		content, err := assetFiles.ReadFile("assets/" + a.name)
		if err != nil {
			faults = append(faults, err)
		} else if sum := sha256.Sum256(content); a.hash != "" && hex.EncodeToString(sum[:]) != a.hash {
			faults = append(faults, fmt.Errorf("assets/%s is not version %s of %s: its SHA-256 is %x", a.name, a.version, a.origin, sum))
		}
	}
	return errors.Join(faults...)
}

// assetRoutes serves the files. Their addresses hold a hash of their content, so that a page of one release never loads a file of another.
func (c *Console) assetRoutes() (all []Route) {
	for _, a := range assets() {
		content, _ := assetFiles.ReadFile("assets/" + a.name)
		all = append(all, Route{auth.Route{Method: http.MethodGet, Path: assetPath(a.name), Who: auth.Public},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				setHeaders(w.Header())
				w.Header().Set("Content-Type", a.media)
				_, _ = w.Write(content)
			})})
	}
	return all
}

// assetPath returns the address of a file of assets/.
func assetPath(name string) string {
	content, _ := assetFiles.ReadFile("assets/" + name)
	sum := sha256.Sum256(content)
	ext := path.Ext(name)
	return Prefix + "/assets/" + strings.TrimSuffix(name, ext) + "-" + hex.EncodeToString(sum[:6]) + ext
}
