package control

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestDocumentCacheExpires checks that the documents expire without requests and are built again on
// request, and that the index is built once.
func TestDocumentCacheExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		builds := 0
		d := &documentCache{ttl: time.Second, build: func() http.Handler {
			builds++
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", `"hash"`)
				w.WriteHeader(http.StatusOK)
				fmt.Fprint(w, "document ", r.URL.Path)
			})
		}}
		request := func(path, known string, wantCode int, wantBody string, wantBuilds int) {
			t.Helper()
			r, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
			r.Header.Set("If-None-Match", known)
			d.ServeHTTP(w, r)
			if w.Code != wantCode || w.Body.String() != wantBody || w.Header().Get("Etag") != `"hash"` ||
				builds != wantBuilds {
				t.Errorf(
					"%s: code %d, body %q, headers %v, %d builds, want %d %q, %d builds",
					path,
					w.Code,
					w.Body,
					w.Header(),
					builds,
					wantCode,
					wantBody,
					wantBuilds,
				)
			}
		}
		request("/openapi/v3", "", 200, "document /openapi/v3", 1)
		request("/openapi/v2", "", 200, "document /openapi/v2", 1)
		time.Sleep(900 * time.Millisecond)
		request("/openapi/v3/api/v1", "", 200, "document /openapi/v3/api/v1", 1)
		time.Sleep(900 * time.Millisecond)
		request("/openapi/v2", "", 200, "document /openapi/v2", 1) // The TTL starts at the last request.
		time.Sleep(1100 * time.Millisecond)
		request("/openapi/v3", "", 200, "document /openapi/v3", 1)
		request("/openapi/v3", `"hash"`, 304, "", 1)
		request("/openapi/v2", "", 200, "document /openapi/v2", 2)
		time.Sleep(2 * time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.handler != nil {
			t.Error("the documents did not expire")
		}
	})
}
