package control

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// TestDocumentCacheExpires checks that the documents expire without requests and are built again on
// request, and that the index is built once.
func TestDocumentCacheExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		builds := 0
		document := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"hash"`)
			w.WriteHeader(http.StatusOK)
			fmt.Fprint(w, "document ", r.URL.Path)
		})
		d := newDocumentCache(time.Second, func() *documentsV2 {
			builds++
			return &documentsV2{Handler: document}
		}, func() http.Handler {
			builds++
			return document
		})
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
		request("/openapi/v2", "", 200, "document /openapi/v2", 2)
		time.Sleep(900 * time.Millisecond)
		request("/openapi/v3/api/v1", "", 200, "document /openapi/v3/api/v1", 2)
		time.Sleep(900 * time.Millisecond)
		request("/openapi/v3/api/v1", "", 200, "document /openapi/v3/api/v1", 2) // The TTL starts at the last request.
		request("/openapi/v2", "", 200, "document /openapi/v2", 3)
		time.Sleep(1100 * time.Millisecond)
		request("/openapi/v3", "", 200, "document /openapi/v3", 3)
		request("/openapi/v3", `"hash"`, 304, "", 3)
		request("/openapi/v3/api/v1", "", 200, "document /openapi/v3/api/v1", 4)
		time.Sleep(2 * time.Second)
		d.v3.mu.Lock()
		defer d.v3.mu.Unlock()
		if d.v3.built {
			t.Error("the documents did not expire")
		}
	})
}

// fakeDocuments has the document of one group version.
type fakeDocuments struct {
	hash   string // "": there is none
	builds int
}

func (f *fakeDocuments) Documents() map[schema.GroupVersion]string {
	if f.hash == "" {
		return nil
	}
	return map[schema.GroupVersion]string{{Group: "example.com", Version: "v1"}: f.hash}
}

func (f *fakeDocuments) OpenAPIV3(schema.GroupVersion) (*spec3.OpenAPI, error) {
	f.builds++
	return &spec3.OpenAPI{Version: f.hash}, nil
}

func (f *fakeDocuments) OpenAPIV2(builtIn *spec.Swagger) (*spec.Swagger, error) {
	f.builds++
	out := *builtIn
	out.Host = f.hash
	return &out, nil
}

// TestDocumentsOfCustomResources checks that the index lists the document of a custom resource without
// building it, that a change replaces it, and that it expires.
func TestDocumentsOfCustomResources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		builtIn := newDocumentCache(time.Second, func() *documentsV2 { return &documentsV2{swagger: &spec.Swagger{}} },
			func() http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusOK)
					fmt.Fprint(w, `{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=x"}}}`)
				})
			})
		custom := &fakeDocuments{}
		m := newMergedDocuments(builtIn, custom, time.Second)
		request := func(path string, wantCode, wantBuilds int, wantBody ...string) http.Header {
			t.Helper()
			r, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
			m.ServeHTTP(w, r)
			if w.Code != wantCode || custom.builds != wantBuilds {
				t.Errorf("%s: code %d, %d builds, want %d, %d", path, w.Code, custom.builds, wantCode, wantBuilds)
			}
			for _, want := range wantBody {
				if !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s: got %s, want %s in it", path, w.Body, want)
				}
			}
			return w.Header()
		}
		const document = "/openapi/v3/apis/example.com/v1"
		before := request("/openapi/v3", 200, 0, "api/v1").Get("Etag")
		custom.hash = "A"
		if after := request("/openapi/v3", 200, 0, `"api/v1"`, document+"?hash=A").Get("Etag"); after == before {
			t.Errorf("the index has the same ETag %s with another document", after)
		}
		if h := request(document+"?hash=A", 200, 1, `"openapi":"A"`); h.Get("Cache-Control") != "public, immutable" {
			t.Errorf("the document cannot be cached: %v", h)
		}
		request(document, 200, 1, `"openapi":"A"`)
		request("/openapi/v2", 200, 2, `"host":"A"`)
		custom.hash = "B"
		if h := request(document+"?hash=A", 301, 2); h.Get("Location") != document+"?hash=B" {
			t.Errorf("redirected to %s", h.Get("Location"))
		}
		request(document, 200, 3, `"openapi":"B"`)
		time.Sleep(2 * time.Second)
		request(document, 200, 4, `"openapi":"B"`)
		time.Sleep(2 * time.Second) // the timers end
	})
}
