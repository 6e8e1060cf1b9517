#include "src/engine/serve/request_fields.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

TEST(RequestFields, ReadsWhatIsThereAndNothingForAbsentOrNull) {
  const json object = {{"a", 0.5}, {"b", 7}, {"c", true}, {"d", "x"}, {"e", {"p", "q"}}, {"f", "one"}, {"g", nullptr}, {"h", 3.0}};
  RequestFields fields(object);
  EXPECT_EQ(fields.Number("a", 0, 1), 0.5);
  EXPECT_EQ(fields.Number("b", 0, 10), 7);
  EXPECT_EQ(fields.Integer("b", 0, 10), 7);
  EXPECT_EQ(fields.Integer("h", 0, 10), 3);
  EXPECT_EQ(fields.Bool("c"), true);
  EXPECT_EQ(fields.Text("d"), "x");
  EXPECT_EQ(fields.Texts("e", 4, 16), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(fields.Texts("f", 4, 16), std::vector<std::string>{"one"});
  EXPECT_EQ(fields.Number("g", 0, 1), std::nullopt);
  EXPECT_EQ(fields.Text("absent"), std::nullopt);
  EXPECT_TRUE(fields.ok());
  EXPECT_TRUE(fields.Unknown().empty());
}

TEST(RequestFields, TypesAreStrictAndTheFirstErrorStays) {
  const std::pair<json, const char*> cases[] = {{"1", "invalid_type"}, {true, "invalid_type"}, {1.5, "invalid_type"}, {11, "invalid_value"},
                                                {-1, "invalid_value"}, {18446744073709551615u, "invalid_value"}, {1e300, "invalid_value"},
                                                {json::array(), "invalid_type"}};
  for (const auto& [value, code] : cases) {
    const json object = {{"n", value}, {"other", "x"}};
    RequestFields fields(object, "path.");
    EXPECT_EQ(fields.Integer("n", 0, 10), std::nullopt) << value;
    ASSERT_FALSE(fields.ok()) << value;
    EXPECT_EQ(fields.error().code, code) << value;
    EXPECT_EQ(fields.error().param, "path.n");
    EXPECT_EQ(fields.error().status, 400);
    EXPECT_EQ(fields.Bool("other"), std::nullopt);
    EXPECT_EQ(fields.error().param, "path.n");
  }
}

TEST(RequestFields, ListsOfTextsAreBounded) {
  for (const json& value : {json::array({""}), json::array({std::string(17, 'x')}), json::array({"a", "b", "c"}), json::array({1}), json(3)}) {
    const json object = {{"stop", value}};
    RequestFields fields(object);
    EXPECT_EQ(fields.Texts("stop", 2, 16), std::nullopt) << value;
    EXPECT_FALSE(fields.ok()) << value;
  }
}

TEST(RequestFields, WhatIsNotOfferedIsRefusedUnlessItAsksForNothing) {
  for (const json& value : {json(nullptr), json(false), json::array()}) {
    const json object = {{"tools", value}};
    RequestFields fields(object);
    fields.Refuse({"tools"});
    EXPECT_TRUE(fields.ok()) << value;
  }
  const json object = {{"tools", {1}}};
  RequestFields fields(object);
  fields.Refuse({"tools"});
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error().code, "unsupported_parameter");
}

TEST(RequestFields, UnknownMembersAreListedByHarmlessNamesOnly) {
  json object = {{"known", 1}, {"fly", 1}, {"bad\r\nheader: x", 1}, {std::string(65, 'x'), 1}, {"", 1}};
  RequestFields fields(object);
  fields.Ignore({"known"});
  EXPECT_EQ(fields.Unknown(), std::vector<std::string>{"fly"});
  for (int i = 0; i < 40; ++i) object["x" + std::to_string(i)] = 1;
  EXPECT_EQ(RequestFields(object).Unknown().size(), 16u);
}

TEST(RequestFields, JoinedObjectsTellWhatIsWrongAndUnknownWithTheirPaths) {
  const json object = {{"inner", {{"known", 1}, {"fly", 1}}}, {"swim", 1}};
  RequestFields fields(object);
  RequestFields inner(*fields.Object("inner"), "inner.");
  inner.Ignore({"known"});
  fields.Join(inner);
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(fields.Unknown(), (std::vector<std::string>{"swim", "inner.fly"}));
  EXPECT_FALSE(inner.Text("fly").has_value());
  fields.Join(inner);
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error().param, "inner.fly");
}

TEST(ApiError, BodyHasTheShapeOfTheOpenAiApi) {
  ApiError error = ApiError::Invalid("invalid_value", "", "bad \xff byte");
  error.extras = {{"n_prompt_tokens", 7}};
  const json body = json::parse(error.Body());
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_TRUE(body["error"]["param"].is_null());
  EXPECT_EQ(body["error"]["n_prompt_tokens"], 7);
  EXPECT_EQ(Quoted("a\nb" + std::string(300, 'c')).size(), 203u);
}

}  // namespace
}  // namespace oscar::engine
