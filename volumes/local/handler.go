package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"berth/internal/localvolumes"
)

// maxBody limits a request body, in bytes.
const maxBody = 1 << 10

// Handler serves the volumes of the node. enabled is called when a control server uses the driver, and must be
// idempotent.
//
//	GET    /localvolumes        List
//	PUT    /localvolumes/NAME   Request; creates the volume or grows it: Volume
//	DELETE /localvolumes/NAME   deletes the volume
//
// Codes of errors: 400 for an invalid request, 409 for a volume in use, 410 for a missing one, 501 if the host does not
// support volumes, 507 if there is not enough space, and 500. The body is the text of the error.
func (d *Driver) Handler(enabled func()) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+localvolumes.Path, func(w http.ResponseWriter, r *http.Request) {
		out, err := d.list(r.Context())
		if err == nil {
			enabled()
		}
		respond(w, out, err)
	})
	mux.HandleFunc("PUT "+localvolumes.Path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		var in localvolumes.Request
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&in); err != nil {
			respond(w, nil, fmt.Errorf("%w: request body: %w", ErrInvalid, err))
			return
		}
		enabled()
		change := d.Ensure
		if in.Grow {
			change = d.Grow
		}
		out, err := change(r.Context(), r.PathValue("name"), in.CapacityBytes)
		respond(w, out, err)
	})
	mux.HandleFunc("DELETE "+localvolumes.Path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		respond(w, struct{}{}, d.Delete(r.Context(), r.PathValue("name")))
	})
	return mux
}

func (d *Driver) list(ctx context.Context) (localvolumes.List, error) {
	if err := d.Supported(ctx); err != nil {
		return localvolumes.List{}, err
	}
	volumes, err := d.List()
	if err != nil {
		return localvolumes.List{}, err
	}
	available, err := d.Available()
	return localvolumes.List{Driver: localvolumes.DriverName, AvailableBytes: available, Volumes: volumes}, err
}

func respond(w http.ResponseWriter, out any, err error) {
	if err != nil {
		code := http.StatusInternalServerError
		switch {
		case errors.Is(err, ErrInvalid):
			code = http.StatusBadRequest
		case errors.Is(err, ErrNotFound): // 404 is that of an agent without this endpoint
			code = http.StatusGone
		case errors.Is(err, ErrInUse):
			code = http.StatusConflict
		case errors.Is(err, ErrUnsupported):
			code = http.StatusNotImplemented
		case errors.Is(err, ErrNoSpace):
			code = http.StatusInsufficientStorage
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // fails only if the client is gone
}
