package nodeapi

import (
	"context"
	"net/http"
)

// Images is the list of images on the node.
type Images struct {
	Images   []Image   `json:"images"`
	Archives []Archive `json:"archives,omitempty"` // image archive files
}

// Image is one image known to the runtime.
type Image struct {
	ID    string   `json:"id"`
	Names []string `json:"names,omitempty"` // tags and digests, in full
	Size  uint64   `json:"size"`            // compressed size in bytes
	// why garbage collection keeps the image when it is unused; empty: it can be removed
	Pinned string `json:"pinned,omitempty"`
	InUse  bool   `json:"inUse"` // by a pod or a container of the node
}

// Archive is a file in the directory of image archives.
type Archive struct {
	Path    string   `json:"path"`
	State   string   `json:"state"` // waiting, importing, imported, broken
	Images  []string `json:"images,omitempty"`
	Message string   `json:"message,omitempty"` // cause if broken, or waiting after a failure
}

func (s *server) images(w http.ResponseWriter, r *http.Request) {
	list, err := s.h.Images(r.Context())
	reply(w, list, err)
}

// Images returns the images on the node.
func (c *Client) Images(ctx context.Context) (Images, error) {
	return fetch[Images](ctx, c, request{method: http.MethodGet, path: "/v1/images"})
}
