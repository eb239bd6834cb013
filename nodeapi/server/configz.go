package server

import "net/http"

// configz tells the configuration in force, under upstream's key.
func (s *server) configz(w http.ResponseWriter, _ *http.Request) {
	tell(w, map[string]any{"kubeletconfig": s.h.Config()})
}
