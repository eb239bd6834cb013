package browser

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// TestBrowserLeavesNothing opens a page and checks that no process and no file of the browser are left afterwards.
func TestBrowserLeavesNothing(t *testing.T) {
	files := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<body><a href='#next'>a link</a>"))
	})
	server := httptest.NewServer(files)
	t.Cleanup(server.Close)
	var home string
	t.Run("page", func(t *testing.T) {
		p := Open(t, 400, 300)
		p.Go(server.URL)
		p.WaitText("a link")
		if !p.Has("a", "a link") || p.Has("button", "a link") {
			t.Error("the page has one link and no button")
		}
		if home = p.home; len(processesOf(home)) == 0 {
			t.Error("the browser has no process")
		}
	})
	if left := processesOf(home); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if _, err := os.Stat(home); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", home, err)
	}
}
