package images

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// fakeService is an in-memory image service. Pulls of a name in blocked wait for
// its channel.
type fakeService struct {
	runtimeapi.ImageServiceClient // other methods panic

	mu          sync.Mutex
	images      map[string]*runtimeapi.Image // by requested name
	pulled      []string                     // names in the order in which pulls started
	auths       []*runtimeapi.AuthConfig     // of the pulls, in order
	inspects    int
	running     int
	maxRunning  int // concurrent pulls
	removed     []string
	blocked     map[string]chan struct{}
	pullErr     func(image string, auth *runtimeapi.AuthConfig) error
	statusErr   error
	statusBlock chan struct{} // ImageStatus waits for it, if set
}

func newFake() *fakeService {
	return &fakeService{images: map[string]*runtimeapi.Image{}, blocked: map[string]chan struct{}{}}
}

func (f *fakeService) block(image string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	f.blocked[image] = c
	return func() { close(c) }
}

func (f *fakeService) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest,
	_ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	image := r.Image.Image
	f.mu.Lock()
	f.pulled = append(f.pulled, image)
	f.auths = append(f.auths, r.Auth)
	f.running++
	f.maxRunning = max(f.maxRunning, f.running)
	block, fail := f.blocked[image], f.pullErr
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if fail != nil {
		if err := fail(image, r.Auth); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := "id-of-" + image
	f.images[id] = &runtimeapi.Image{Id: id, RepoTags: []string{image}, Size: 100}
	f.images[image] = f.images[id]
	return &runtimeapi.PullImageResponse{ImageRef: id}, nil
}

func (f *fakeService) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest,
	_ ...grpc.CallOption) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	f.inspects++
	block, err, img := f.statusBlock, f.statusErr, f.images[r.Image.Image]
	f.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return &runtimeapi.ImageStatusResponse{Image: img}, err
}

func (f *fakeService) ListImages(context.Context, *runtimeapi.ListImagesRequest,
	...grpc.CallOption) (*runtimeapi.ListImagesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*runtimeapi.Image
	for key, img := range f.images {
		if key == img.Id {
			all = append(all, img)
		}
	}
	return &runtimeapi.ListImagesResponse{Images: all}, nil
}

func (f *fakeService) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest,
	_ ...grpc.CallOption) (*runtimeapi.RemoveImageResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = append(f.removed, r.Image.Image)
	for key, img := range f.images {
		if img.Id == r.Image.Image {
			delete(f.images, key)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// add adds an image to the node.
func (f *fakeService) add(img *runtimeapi.Image) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images[img.Id] = img
	for _, t := range img.RepoTags {
		f.images[t] = img
	}
}

// started returns the names of the started pulls, in order.
func (f *fakeService) started() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pulled)
}

// removedIDs returns the IDs that were removed, in order.
func (f *fakeService) removedIDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.removed)
}

func newPod(name string, priority int32, pullSecrets ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{Priority: new(priority)}}
	for _, s := range pullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

func pullAction(image string) plan.PullImage { return plan.PullImage{Container: "c", Image: image} }

// newImages returns a Manager that is closed at the end of the test.
func newImages(t *testing.T, o Options) *Manager {
	t.Helper()
	i := New(o)
	t.Cleanup(i.Close)
	return i
}

func wantKind(t *testing.T, err error, kind plan.ErrorKind, reason string) {
	t.Helper()
	e, ok := err.(*plan.Error) //nolint:errorlint // the outermost error carries the kind
	if !ok {
		t.Fatalf("%v is not a *plan.Error", err)
	}
	if e.Kind != kind || e.Reason != reason {
		t.Errorf("kind %d reason %s, want %d %s: %v", e.Kind, e.Reason, kind, reason, err)
	}
}

var errDenied = status.Error(codes.Unknown, "failed to pull and unpack image: failed to authorize: 401 Unauthorized")
