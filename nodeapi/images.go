package nodeapi

import (
	"context"
	"net/http"
)

// Images are the images of the node.
type Images struct {
	Images   []Image   `json:"images"`
	Archives []Archive `json:"archives,omitempty"` // files whose images are imported
}

// Image is one image of the runtime.
type Image struct {
	ID     string   `json:"id"`
	Names  []string `json:"names,omitempty"`  // tags and digests, in full
	Size   uint64   `json:"size"`             // bytes, packed
	Pinned string   `json:"pinned,omitempty"` // why it stays when nobody uses it; empty: it may go
	InUse  bool     `json:"inUse"`            // by a pod or a container of the node
}

// Archive is a file in the folder of images.
type Archive struct {
	Path    string   `json:"path"`
	State   string   `json:"state"` // waiting, importing, imported, broken
	Images  []string `json:"images,omitempty"`
	Message string   `json:"why,omitempty"` // it is broken, or waits after a failure
}

func (s *server) images(w http.ResponseWriter, r *http.Request) {
	list, err := s.h.Images(r.Context())
	reply(w, list, err)
}

// Images asks which images are on the node.
func (c *Client) Images(ctx context.Context) (Images, error) {
	return fetch[Images](ctx, c, question{method: http.MethodGet, path: "/v1/images"})
}
