package control

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestDocumentCacheExpires when nobody asks for them, and made again; their index,
// which clients ask for again and again, is made once.
func TestDocumentCacheExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		d := &documentCache{ttl: time.Second, build: func() http.Handler {
			made++
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", `"hash"`)
				w.WriteHeader(http.StatusOK)
				fmt.Fprint(w, "all of ", r.URL.Path)
			})
		}}
		ask := func(path, known string, wantCode int, wantBody string, wantMade int) {
			t.Helper()
			r, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
			r.Header.Set("If-None-Match", known)
			d.ServeHTTP(w, r)
			if w.Code != wantCode || w.Body.String() != wantBody || w.Header().Get("Etag") != `"hash"` || made != wantMade {
				t.Errorf("%s: %d %q %v, made %d times, want %d %q, %d times", path, w.Code, w.Body, w.Header(), made, wantCode, wantBody, wantMade)
			}
		}
		ask("/openapi/v3", "", 200, "all of /openapi/v3", 1)
		ask("/openapi/v2", "", 200, "all of /openapi/v2", 1)
		time.Sleep(900 * time.Millisecond)
		ask("/openapi/v3/api/v1", "", 200, "all of /openapi/v3/api/v1", 1)
		time.Sleep(900 * time.Millisecond)
		ask("/openapi/v2", "", 200, "all of /openapi/v2", 1) // the last request counts
		time.Sleep(1100 * time.Millisecond)
		ask("/openapi/v3", "", 200, "all of /openapi/v3", 1)
		ask("/openapi/v3", `"hash"`, 304, "", 1)
		ask("/openapi/v2", "", 200, "all of /openapi/v2", 2)
		time.Sleep(2 * time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.handler != nil {
			t.Error("the documents are kept")
		}
	})
}
