// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/scheme"
)

// pageSize is how many bundles are asked for at a time.
const pageSize = 500

type listOptions struct {
	*session
	print     *genericclioptions.PrintFlags
	all       bool
	selector  string
	fields    string
	noHeaders bool
}

// list lists bundles, or prints one.
func (s *session) list() *cobra.Command {
	o := &listOptions{session: s, print: genericclioptions.NewPrintFlags("").WithTypeSetter(scheme.Scheme)}
	cmd := &cobra.Command{
		Use:     "list [NAME]",
		Aliases: []string{"get"},
		Short:   "List bundles",
		Example: `  # Those of the namespace, and of all namespaces with reasons
  kubectl bundle list
  kubectl bundle list -A -o wide

  # Those that fail
  kubectl bundle list -A --field-selector status.phase=Failing

  # The digest of one
  kubectl bundle list app -o jsonpath='{.status.content.digest}'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: s.completeNames,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.print.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format: wide, json, yaml, kyaml, name, jsonpath=…, jsonpath-as-json=…, jsonpath-file=…, go-template=… or go-template-file=…. For custom-columns=… there is kubectl get bundles."
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "List those of all namespaces.")
	f.StringVarP(&o.selector, "selector", "l", "", "Only those with these labels, as in: -l app=web,tier!=front.")
	f.StringVar(&o.fields, "field-selector", "", "Only those with these fields, as in: --field-selector status.phase=Failing.")
	f.BoolVar(&o.noHeaders, "no-headers", false, "No headers.")
	return cmd
}

func (o *listOptions) run(ctx context.Context, args []string) error {
	opts := metav1.ListOptions{LabelSelector: o.selector, FieldSelector: o.fields, Limit: pageSize}
	name := ""
	if len(args) > 0 {
		if o.all || o.selector != "" || o.fields != "" {
			return usage("a name goes without -A and selectors")
		}
		var err error
		if name, err = parseName(args[0]); err != nil {
			return err
		}
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}
	if format := *o.print.OutputFormat; format != "" && format != "wide" || o.template() {
		return o.objects(ctx, name, opts)
	}
	return o.table(ctx, name, opts)
}

// template reports whether a template was given without -o, which kubectl allows.
func (o *listOptions) template() bool { return *o.print.TemplatePrinterFlags.TemplateArgument != "" }

// table prints what the server makes a table of, page by page.
func (o *listOptions) table(ctx context.Context, name string, opts metav1.ListOptions) error {
	client, err := o.clientset()
	if err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	printer := printers.NewTablePrinter(printers.PrintOptions{
		NoHeaders: o.noHeaders, WithNamespace: o.all, Wide: *o.print.OutputFormat == "wide",
	})
	tabs := printers.GetNewTabWriter(o.output(""))
	rows := 0
	for {
		result := client.RukpakV1alpha1().RESTClient().Get().NamespaceIfScoped(namespace, !o.all).Resource("bundles").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
			VersionedParams(&opts, scheme.ParameterCodec).Do(ctx)
		table, err := decodeTable(result)
		if err != nil {
			return err
		}
		rows += len(table.Rows)
		if len(table.Rows) > 0 {
			if err := printer.PrintObj(table, tabs); err != nil {
				return err
			}
		}
		if opts.Continue = table.Continue; opts.Continue == "" {
			break
		}
	}
	if rows == 0 {
		return o.nothing(name, namespace)
	}
	return tabs.Flush()
}

// nothing says that there is nothing, which is an error if something was named.
func (o *listOptions) nothing(name, namespace string) error {
	if name != "" {
		return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("bundles").GroupResource(), name)
	}
	if o.all {
		o.say("There are no bundles.")
	} else {
		o.say("There are no bundles in namespace %s.", namespace)
	}
	return nil
}

func decodeTable(result rest.Result) (*metav1.Table, error) {
	raw, err := body(result)
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(raw, table); err != nil {
		return nil, fmt.Errorf("read the list of bundles: %w", err)
	}
	for i := range table.Rows {
		object := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(table.Rows[i].Object.Raw, object); err != nil {
			return nil, fmt.Errorf("read the list of bundles: %w", err)
		}
		table.Rows[i].Object.Object = object
	}
	return table, nil
}

// objects prints objects, as the flags say.
func (o *listOptions) objects(ctx context.Context, name string, opts metav1.ListOptions) error {
	printer, err := o.print.ToPrinter()
	if err != nil {
		return fail(ExitUsage, err, "")
	}
	client, err := o.clientset()
	if err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	if name != "" {
		b, err := client.RukpakV1alpha1().Bundles(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return printer.PrintObj(b, o.output(*o.print.OutputFormat))
	}
	if o.all {
		namespace = metav1.NamespaceAll
	}
	list := &v1alpha1.BundleList{Items: []v1alpha1.Bundle{}}
	for {
		page, err := client.RukpakV1alpha1().Bundles(namespace).List(ctx, opts)
		if err != nil {
			return err
		}
		list.ResourceVersion = page.ResourceVersion
		list.Items = append(list.Items, page.Items...)
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	for i := range list.Items {
		// The printer of names takes no lists, and none of the others takes what has no kind.
		list.Items[i].SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Bundle"))
	}
	if *o.print.OutputFormat != "name" {
		return printer.PrintObj(list, o.output(*o.print.OutputFormat))
	}
	for i := range list.Items {
		if err := printer.PrintObj(&list.Items[i], o.output("name")); err != nil {
			return err
		}
	}
	return nil
}

// body is what the server answered. Raw alone would not say in an error what the server said.
func body(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}
