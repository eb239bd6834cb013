package tokens

import (
	"github.com/golang-jwt/jwt/v5"
	"k8s.io/apimachinery/pkg/types"
)

// claims is the body of a service account token: the registered claims of RFC
// 7519 and Kubernetes' private ones, as clients of any API server read them.
type claims struct {
	jwt.RegisteredClaims

	Kubernetes bound `json:"kubernetes.io"`
}

type bound struct {
	Namespace      string `json:"namespace"`
	Node           *named `json:"node,omitempty"`
	Pod            *named `json:"pod,omitempty"`
	Secret         *named `json:"secret,omitempty"`
	ServiceAccount named  `json:"serviceaccount"`
	// WarnAfter is when it should have been renewed, of a token that is good longer.
	WarnAfter *jwt.NumericDate `json:"warnafter,omitempty"`
}

// named is an object and which one of that name it was.
type named struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}
