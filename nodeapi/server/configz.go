package server

import "net/http"

// configz serves the active configuration under upstream's key.
func (s *server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.h.Config()})
}
