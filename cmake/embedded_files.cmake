# oscar_embedded_files: the chat page and the OpenAPI description (src/engine/serve/embedded_files.h), taken into the program by
# .incbin.
set(OSCAR_CHAT_PAGE ${PROJECT_SOURCE_DIR}/src/engine/serve/chat_page.html)
set(OSCAR_OPENAPI ${PROJECT_SOURCE_DIR}/src/engine/serve/openapi.json)
set(dir ${PROJECT_BINARY_DIR}/embedded_files)
configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_files.cc.in ${dir}/embedded_files.cc @ONLY)
set_source_files_properties(${dir}/embedded_files.cc PROPERTIES OBJECT_DEPENDS "${OSCAR_CHAT_PAGE};${OSCAR_OPENAPI}")
add_library(oscar_embedded_files STATIC ${dir}/embedded_files.cc)
target_include_directories(oscar_embedded_files PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(oscar_embedded_files PUBLIC oscar_warnings oscar_sanitizers)
