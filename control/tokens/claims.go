package tokens

import (
	"github.com/golang-jwt/jwt/v5"
	"k8s.io/apimachinery/pkg/types"
)

// claims is the body of a service account token: the registered claims of RFC
// 7519 and Kubernetes' private ones, as clients of any API server read them.
type claims struct {
	jwt.RegisteredClaims

	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

type kubernetesClaims struct {
	Namespace      string           `json:"namespace"`
	Node           *objectReference `json:"node,omitempty"`
	Pod            *objectReference `json:"pod,omitempty"`
	Secret         *objectReference `json:"secret,omitempty"`
	ServiceAccount objectReference  `json:"serviceaccount"`
	// WarnAfter is when it should have been renewed, of a token that is good longer.
	WarnAfter *jwt.NumericDate `json:"warnafter,omitempty"`
}

// objectReference is an object and which one of that name it was.
type objectReference struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}
