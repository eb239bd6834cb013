package customresources

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Storages without requests are dropped after idleTimeout. This is checked every idleCheckPeriod.
const (
	idleTimeout     = 5 * time.Minute
	idleCheckPeriod = time.Minute
)

// handler serves the paths below /apis/ that belong to custom resources.
type handler struct {
	definitions *definitions
	discovery   *groupDiscovery
	objects     http.Handler // the library's handler of custom resources
	notFound    http.Handler
	uses        uses
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok {
		h.notFound.ServeHTTP(w, r)
		return
	}
	if !info.IsResourceRequest {
		if found := h.discovery.handler(info.Path); found != nil {
			found.ServeHTTP(w, r)
		} else {
			h.notFound.ServeHTTP(w, r)
		}
		return
	}
	crd, err := h.definitions.Lister().Get(info.Resource + "." + info.APIGroup)
	if err != nil {
		h.notFound.ServeHTTP(w, r)
		return
	}
	h.uses.begin(crd.UID)
	defer h.uses.end(crd.UID)
	h.objects.ServeHTTP(w, r)
}

// uses records which definitions serve requests. It is safe for concurrent use.
type uses struct {
	now func() time.Time

	mu    sync.Mutex
	byUID map[types.UID]*use
}

// use is the use of one definition.
type use struct {
	requests int       // in progress, watches included
	last     time.Time // end of the last request
}

func (u *uses) begin(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byUID[uid] == nil {
		u.byUID[uid] = &use{}
	}
	u.byUID[uid].requests++
}

func (u *uses) end(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.byUID[uid]
	one.requests--
	one.last = u.now()
}

// recent reports whether a definition serves a request or has served one within idleTimeout.
func (u *uses) recent(uid types.UID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.byUID[uid]
	return one != nil && one.active(u.now())
}

func (u *use) active(now time.Time) bool { return u.requests > 0 || now.Sub(u.last) < idleTimeout }

// removeIdle forgets the definitions without recent requests, and reports whether there were any.
func (u *uses) removeIdle() (found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for uid, one := range u.byUID {
		if !one.active(u.now()) {
			delete(u.byUID, uid)
			found = true
		}
	}
	return found
}

// dropIdle drops the storages of idle definitions until ctx is done.
func (h *handler) dropIdle(ctx context.Context, drop func()) {
	tick := time.NewTicker(idleCheckPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if h.uses.removeIdle() {
				drop()
			}
		}
	}
}
