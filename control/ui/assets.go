package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asset is a file of the page. Its content stays in the program's read-only data.
type asset struct {
	gzipped     []byte
	contentType string
	etag        string
}

// contentTypes maps extensions to types. The tables of the host do not apply.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// readAssets returns the compressed files by path.
func readAssets(from interface {
	fs.ReadDirFS
	fs.ReadFileFS
}) (map[string]asset, error) {
	const dir, suffix = "dist", ".gz"
	entries, err := from.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("user interface: %w", err)
	}
	out := map[string]asset{}
	for _, e := range entries {
		name, compressed := strings.CutSuffix(e.Name(), suffix)
		if !compressed {
			continue
		}
		content, err := from.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("user interface: %w", err)
		}
		sum := sha256.Sum256(content)
		kind := contentTypes[path.Ext(name)]
		if kind == "" {
			return nil, fmt.Errorf("user interface: %s has an unknown type", e.Name())
		}
		out[name] = asset{content, kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
	}
	if _, ok := out["index.html"]; !ok {
		return nil, fmt.Errorf("user interface: index.html is missing")
	}
	return out, nil
}

// serveAsset serves a file. Browsers ask for a new version at each start of the page.
func (h *handler) serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" {
		name = "index.html"
	}
	a, ok := h.files[name]
	switch {
	case !ok:
		writeStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, "unknown path")
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		writeStatus(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"the method must be GET or HEAD")
		return
	}
	header := w.Header()
	header.Set("Cache-Control", "no-cache")
	header.Set("Etag", a.etag)
	header.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", a.contentType)
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Length", fmt.Sprint(len(a.gzipped)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(a.gzipped) // an error means that the client is disconnected
		}
		return
	}
	if r.Method == http.MethodGet {
		plain, err := gzip.NewReader(bytes.NewReader(a.gzipped))
		if err == nil {
			_, _ = io.Copy(w, plain) // see above
		}
	}
}

// acceptsGzip reports whether an Accept-Encoding header allows gzip.
func acceptsGzip(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err == nil && (name == "gzip" || name == "*") {
			return strings.Trim(params["q"], "0.") != "" || params["q"] == ""
		}
	}
	return false
}
