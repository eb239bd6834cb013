package control

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CheckLiveness asks the server itself, by the way that its clients come. Whatever it says is
// an answer, also that its store is not well; an error is that none came before ctx ended.
func (s *Server) CheckLiveness(ctx context.Context) error {
	err := s.Client.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return nil
	}
	return err
}
